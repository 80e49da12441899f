"""The custom operators ``torch.ops.mlaverify``; importing this module registers them (as torch.compile of the package's functions does).

``verify(q, kv_cache, block_table, seq_lens, qlen, v_head_dim, sm_scale, ...) -> (out, lse)`` makes its outputs, ``verify_into`` writes to
those that it is given, ``decode_attention_fwd_verify`` has the arguments of the Triton function and writes to ``o``, ``lse`` and
``attn_logits``.
Arguments, shapes and errors are those of :func:`mlaverify.verify` and :func:`mlaverify.decode_attention_fwd_verify`. They have no backward.
"""

from typing import Optional

import torch
from torch import Tensor

from mlaverify import _verify
from mlaverify import decode_attention as _decode_attention

_DEVICES = ("cpu", "cuda")


@torch.library.custom_op("mlaverify::verify", mutates_args=(), device_types=_DEVICES)
def verify(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    qlen: int,
    v_head_dim: int,
    sm_scale: float,
    page_size: Optional[int] = None,
    real_seq_lens: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None,
    num_kv_splits: int = 0,
    batch_invariant: bool = False,
    dtype: Optional[str] = None,
    kv_dtype: Optional[str] = None,
) -> tuple[Tensor, Tensor]:
    return _verify.verify(
        q, kv_cache, block_table, seq_lens, qlen=qlen, v_head_dim=v_head_dim, sm_scale=sm_scale, page_size=page_size,
        real_seq_lens=real_seq_lens, k_scale=k_scale, num_kv_splits=num_kv_splits, batch_invariant=batch_invariant, dtype=dtype,
        kv_dtype=kv_dtype,
    )  # fmt: skip


@verify.register_fake
def _(q, kv_cache, block_table, seq_lens, qlen, v_head_dim, *args, **kwargs):
    return _verify.outputs(q, v_head_dim, None, None)


@torch.library.custom_op("mlaverify::verify_into", mutates_args=("out", "lse"), device_types=_DEVICES)
def verify_into(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    lse: Tensor,
    qlen: int,
    v_head_dim: int,
    sm_scale: float,
    page_size: Optional[int] = None,
    real_seq_lens: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None,
    num_kv_splits: int = 0,
    batch_invariant: bool = False,
    dtype: Optional[str] = None,
    kv_dtype: Optional[str] = None,
) -> None:
    _verify.verify(
        q, kv_cache, block_table, seq_lens, qlen=qlen, v_head_dim=v_head_dim, sm_scale=sm_scale, page_size=page_size,
        real_seq_lens=real_seq_lens, k_scale=k_scale, num_kv_splits=num_kv_splits, batch_invariant=batch_invariant, out=out, lse=lse,
        dtype=dtype, kv_dtype=kv_dtype,
    )  # fmt: skip


@verify_into.register_fake
def _(*args, **kwargs):
    return None


@torch.library.custom_op("mlaverify::decode_attention_fwd_verify", mutates_args=("o", "lse", "attn_logits"), device_types=_DEVICES)
def decode_attention_fwd_verify(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    lse: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    real_seq_lens: Optional[Tensor],
    qlen: int,
    attn_logits: Optional[Tensor],
    num_kv_splits: int,
    sm_scale: float,
    page_size: int,
    k_scale: Optional[Tensor] = None,
) -> None:
    values = k_buffer[..., : v_buffer.shape[-1]]  # a compiler may have made v_buffer a copy
    _decode_attention.decode_attention_fwd_verify(
        q, k_buffer, values, o, lse, req_to_token, seq_lens, real_seq_lens, qlen, attn_logits, num_kv_splits, sm_scale, page_size, k_scale
    )


@decode_attention_fwd_verify.register_fake
def _(*args, **kwargs):
    return None
