"""Causal MLA verify attention over a paged latent KV cache.

One step of speculative decoding verifies ``qlen`` tokens of each request at once; all heads attend the same cached latent rows, of
which the first numbers are also the values (Multi-head Latent Attention). Arrays may be of any framework with DLPack: torch, NumPy,
CuPy; strided ones are taken as they are, none is copied.

- :func:`verify` computes a step and returns ``(out, lse)``; :func:`workspace_size` says what memory it needs.
- :func:`decode_attention_fwd_verify`, :func:`select_verify_config`, :func:`verify_num_kv_splits` and
  :func:`warmup_decode_attention_fwd_verify` have the names and arguments of vLLM's Triton functions; ``mlaverify.vllm`` puts them in
  their place.
- ``torch.ops.mlaverify.verify`` (``mlaverify.torch_op``) is the same as a custom operator.

Refused arguments raise ValueError or TypeError, what no backend here can do NotImplementedError, a failing device RuntimeError: each
with the argument, what it was and what it should be.
"""

from mlaverify import _core
from mlaverify._verify import verify, workspace_size
from mlaverify.decode_attention import (
    VERIFY_DEFAULT_CONFIG,
    decode_attention_fwd_verify,
    select_verify_config,
    verify_num_kv_splits,
    verify_row_blocks,
    warmup_decode_attention_fwd_verify,
)
from mlaverify.info import Backend, backends

__version__: str = _core.version()

__all__ = [
    "VERIFY_DEFAULT_CONFIG",
    "Backend",
    "backends",
    "decode_attention_fwd_verify",
    "select_verify_config",
    "verify",
    "verify_num_kv_splits",
    "verify_row_blocks",
    "warmup_decode_attention_fwd_verify",
    "workspace_size",
]
