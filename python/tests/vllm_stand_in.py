"""A package vllm with no more than the module whose functions are replaced."""

import sys
import types
from importlib import metadata

import pytest

from mlaverify import vllm

SOURCE = """
import inspect

VERIFY_DEFAULT_CONFIG = {"BLOCK_H": 64}
def verify_row_blocks(qlen, num_heads, block_h): ...
def verify_num_kv_splits(max_seq_len, batch, qlen, num_heads, sm_count, block_h, occupancy=1.0, min_work_per_split=64, max_splits=8): ...
def select_verify_config(batch, qlen, num_heads): ...
def _storage_view(t, shape): ...
def decode_attention_fwd_verify(q, k_buffer, v_buffer, o, lse, req_to_token, seq_lens, real_seq_lens, qlen, attn_logits, num_kv_splits,
                                sm_scale, page_size, k_scale=None): ...
def warmup_decode_attention_fwd_verify(q, k_buffer, o, lse, req_to_token, has_real, qlens, attn_logits, sm_scale, page_size,
                                       k_scale=None): ...
"""
DECODE = """
calls = []
def decode_attention_fwd(q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits, sm_scale, page_size=1,
                         logit_cap=0.0, k_scale=None, v_scale=None, is_mla=False):
    calls.append(q)
"""


@pytest.fixture
def make_vllm(monkeypatch):
    """Makes a package vllm of a source text; a second module of it has imported everything by name."""

    def make(source):
        parts = vllm.MODULE.split(".")
        for i in range(1, len(parts)):
            package = types.ModuleType(".".join(parts[:i]))
            package.__path__ = []
            monkeypatch.setitem(sys.modules, package.__name__, package)
        module, user = types.ModuleType(vllm.MODULE), types.ModuleType("vllm.user")
        exec(source, module.__dict__)  # noqa: S102
        user.__dict__.update({name: value for name, value in module.__dict__.items() if not name.startswith("__")})
        monkeypatch.setitem(sys.modules, vllm.MODULE, module)
        monkeypatch.setitem(sys.modules, "vllm.user", user)
        monkeypatch.setattr(vllm, "_refuse_machine", lambda: None)  # this one may have no GPU
        version = metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: "0.99" if name == "vllm" else version(name))
        return module, user

    yield make
    vllm.uninstall()
