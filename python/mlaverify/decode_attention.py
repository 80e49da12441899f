"""The functions of vLLM's module triton_decode_attention that verify several tokens a request, computed by this library.

Names, order and defaults of arguments are those of the Triton functions. ``mlaverify.vllm.install()`` puts these in their place.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from mlaverify import _core
from mlaverify._verify import is_int, is_torch, refuse_gradients

_NAMES = {"kv_cache": "k_buffer", "out": "o", "block_table": "req_to_token"}  # the library's: those used here


def decode_attention_fwd_verify(
    q: Any,
    k_buffer: Any,
    v_buffer: Any,
    o: Any,
    lse: Any,
    req_to_token: Any,
    seq_lens: Any,
    real_seq_lens: Any,
    qlen: int,
    attn_logits: Any,
    num_kv_splits: int,
    sm_scale: float,
    page_size: int,
    k_scale: Any = None,
) -> None:
    """Writes the attention of ``qlen`` tokens of each request to ``o`` and its LSE to ``lse``, on torch's current stream.

    The mask is that of :func:`mlaverify.verify`. The library's own schedule is used (as with ``num_kv_splits = 0`` there): in the
    memory of ``attn_logits`` if that suffices, else in memory that is kept for the stream. While a CUDA graph is captured and
    ``attn_logits`` does not suffice, keys are cut by the split rule, in ``num_kv_splits`` pieces at most, or as many as ``attn_logits``
    has memory for.

    Args:
        q: ``[B*qlen, H, Lk]`` f32, f16 or bf16, the tokens of a request one after the other.
        k_buffer: ``[num_pages, page_size, 1, Lk]`` or ``[num_pages*page_size, 1, Lk]`` f32, f16, bf16 or FP8.
        v_buffer: ``k_buffer[..., :Lv]``, which says Lv; other memory is refused.
        o: ``[B*qlen, H, Lv]`` in the type of q.
        lse: ``[B*qlen, H]`` f32, natural logarithm.
        req_to_token: ``[B, max_pages]`` int32 block table.
        seq_lens: ``[B]`` int32, the ``qlen`` new tokens included.
        real_seq_lens: ``[B]`` int32 or None: true lengths where seq_lens is padded.
        qlen: tokens of each request, at least 1.
        attn_logits: ``[B*qlen, H, num_kv_splits, Lv+1]`` f32 or None; its contents are lost.
        num_kv_splits: at least 0.
        sm_scale: softmax scale.
        page_size: tokens of a page.
        k_scale: one f32 number as a tensor, or None for 1; multiplies an FP8 cache.

    Raises:
        ValueError, TypeError, NotImplementedError, RuntimeError: as :func:`mlaverify.verify`.
    """
    if hasattr(q, "is_cuda"):  # is_torch(), for less than half of its time
        import torch

        if torch.is_grad_enabled():
            refuse_gradients(q=q, k_buffer=k_buffer, o=o, lse=lse)
        if torch.compiler.is_compiling():
            from mlaverify import torch_op

            torch_op.decode_attention_fwd_verify(
                q, k_buffer, v_buffer, o, lse, req_to_token, seq_lens, real_seq_lens, qlen, attn_logits, num_kv_splits, sm_scale, page_size,
                k_scale,
            )  # fmt: skip
            return
    try:
        _core.decode_attention_fwd_verify(
            q, k_buffer, v_buffer, o, lse, req_to_token, seq_lens, real_seq_lens, qlen, attn_logits, num_kv_splits, sm_scale, page_size,
            k_scale,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise _renamed(error, "v_buffer") from None


def warmup_decode_attention_fwd_verify(
    q: Any,
    k_buffer: Any,
    o: Any,
    lse: Any,
    req_to_token: Any,
    has_real: bool,
    qlens: Any,
    attn_logits: Any,
    sm_scale: float,
    page_size: int,
    k_scale: Any = None,
) -> None:
    """Makes ready what later calls with these tensors and each of ``qlens`` need, so that none loads or allocates anything.

    Kernels are loaded, and where ``attn_logits`` does not suffice, the current stream's workspace is allocated. Shapes as for
    :func:`decode_attention_fwd_verify`, but the rows of q, o and lse need not fit every qlen. Nothing in the tensors changes. Not during
    stream capture.
    """
    if not isinstance(qlens, Iterable):
        raise TypeError(f"qlens: got {qlens!r}, must be ints")
    try:
        _core.warmup(q, k_buffer, o, lse, req_to_token, has_real, list(qlens), attn_logits, sm_scale, page_size, k_scale)
    except (TypeError, ValueError) as error:
        raise _renamed(error, "o") from None


def select_verify_config(batch: int, qlen: int, num_heads: int) -> dict[str, int]:
    """The launch configuration for the current device: torch's where torch has a GPU, else the first GPU or this CPU.

    Keys: ``BLOCK_H`` (rows of a tile), ``BLOCK_N`` (keys of a tile), ``SPLIT_ALIGN`` and ``MIN_SPLIT_LEN`` (keys), ``QSPLIT``,
    ``num_warps``, ``num_stages``, ``S2_BLOCK_S`` and ``s2_num_warps`` (the merge). It informs: the library chooses by itself.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        device = torch.cuda.current_device()
    else:
        device = 0 if any(name == "cuda" and available for name, available, _ in _core.backends()) else -1
    return _core.select_verify_config(batch, qlen, num_heads, device, None)


def verify_row_blocks(qlen: int, num_heads: int, block_h: int) -> int:
    """Row tiles of a request: ``ceil(qlen * num_heads / block_h)``.

    Raises:
        ValueError: block_h below 1, qlen or num_heads below 0.
    """
    for name, value, least in (("qlen", qlen, 0), ("num_heads", num_heads, 0), ("block_h", block_h, 1)):
        if not is_int(value):
            raise TypeError(f"{name}: got {value!r}, must be an int")
        if value < least:
            raise ValueError(f"{name}: got {value}, must be >= {least}")
    return -(-qlen * num_heads // block_h)


def verify_num_kv_splits(
    max_seq_len: int,
    batch: int,
    qlen: int,
    num_heads: int,
    sm_count: int,
    block_h: int,
    occupancy: float = 1.0,
    min_work_per_split: int = 64,
    max_splits: int = 8,
) -> int:
    """Upper bound on KV splits for lengths up to ``max_seq_len``, at least 1: safe to bake into a captured graph.

    Raises:
        ValueError: qlen, sm_count or block_h below 1, num_heads below 0, an occupancy that is negative or not finite.
    """
    return _core.verify_num_kv_splits(max_seq_len, batch, qlen, num_heads, sm_count, block_h, occupancy, min_work_per_split, max_splits)


# Of more than a few rows on a GPU.
VERIFY_DEFAULT_CONFIG: dict[str, int] = _core.select_verify_config(16, 4, 16, -1, "sm_90")


def _storage_view(t: Any, shape: tuple[int, ...]) -> Any:
    """A contiguous tensor of ``shape`` over the storage of the torch tensor ``t``, or new memory if the storage is too small."""
    if not is_torch(t):
        raise TypeError(f"t: got {type(t).__name__}, must be a torch tensor")
    if not isinstance(shape, (tuple, list)) or not all(hasattr(n, "__index__") and n >= 0 for n in shape):
        raise ValueError(f"shape: got {shape!r}, must be ints >= 0")
    if math.prod(shape) * t.element_size() > t.untyped_storage().nbytes():
        return t.new_empty(shape)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return t.as_strided(shape, strides, 0)


def _renamed(error: Exception, v_head_dim: str) -> Exception:
    """The same error with the name that the argument has here; an exception that an array raised as it is."""
    name, colon, text = str(error).partition(":")
    here = {**_NAMES, "v_head_dim": v_head_dim}.get(name)
    return error if here is None or type(error) not in (TypeError, ValueError) else type(error)(here + colon + text)


def replacements() -> dict[str, Any]:
    """What stands in for the functions and values of the Triton module, by name."""
    return {
        "decode_attention_fwd_verify": decode_attention_fwd_verify,
        "select_verify_config": select_verify_config,
        "verify_num_kv_splits": verify_num_kv_splits,
        "verify_row_blocks": verify_row_blocks,
        "warmup_decode_attention_fwd_verify": warmup_decode_attention_fwd_verify,
        "VERIFY_DEFAULT_CONFIG": VERIFY_DEFAULT_CONFIG,
        "_storage_view": _storage_view,
    }
