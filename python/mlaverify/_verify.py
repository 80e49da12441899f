"""verify(): a step of causal MLA verify attention, for arrays of any framework."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from mlaverify import _core


def verify(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    seq_lens: Any,
    *,
    qlen: int,
    v_head_dim: int,
    sm_scale: float,
    page_size: int | None = None,
    real_seq_lens: Any = None,
    k_scale: Any = None,
    num_kv_splits: int = 0,
    batch_invariant: bool = False,
    checked: bool = False,
    out: Any = None,
    lse: Any = None,
    workspace: Any = None,
    stream: Any = None,
    backend: str = "auto",
    num_threads: int = 0,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> tuple[Any, Any]:
    """Computes the attention of ``qlen`` query tokens of each of B requests over a paged latent cache.

    Query token t of request b sees keys 0 ... n-1 with ``n = max(min(seq_lens[b] - qlen + 1 + t, real_seq_lens[b]), 0)``; a row that
    sees no key gets ``out = 0`` and ``lse = -inf``. A value is the first ``v_head_dim`` numbers of its key.

    Args:
        q: ``[B*qlen, H, Lk]`` f32, f16 or bf16; the tokens of a request one after the other. The last dimension contiguous, the other
            strides free, as for all arrays here with more than one dimension.
        kv_cache: ``[num_pages, page_size, 1, Lk]`` or ``[num_pages*page_size, 1, Lk]`` f32, f16, bf16, FP8 e4m3 or e5m2.
        block_table: ``[B, max_pages]`` int32, the pages of each request in order. Entries past its last page may hold anything.
        seq_lens: ``[B]`` int32, keys of each request, the ``qlen`` new ones included.
        qlen: query tokens of each request, at least 1.
        v_head_dim: width of a value, Lv. Lk and Lv are multiples of 8, ``8 <= Lv <= Lk <= 1024``.
        sm_scale: softmax scale.
        page_size: tokens of a page; may be left out where kv_cache has four dimensions.
        real_seq_lens: ``[B]`` int32, true lengths where seq_lens is padded.
        k_scale: one f32 number as an array, multiplies an FP8 cache; ignored with other caches.
        num_kv_splits: 0: the library chooses; n: keys are cut in at most n pieces by the documented rule.
        batch_invariant: the bits of a row depend on nothing but its queries, its keys and the scales; on a GPU also on whether addresses
            and strides are multiples of 16 bytes.
        checked: on a GPU, read lengths and page ids back and refuse bad ones (waits for the stream). On a CPU they are always checked.
        out: ``[B*qlen, H, Lv]`` in the type of q, written to; by default a new array of the framework of q. Like lse and workspace it must
            not overlap any other argument, which is not checked.
        lse: ``[B*qlen, H]`` f32, written to; by default a new one.
        workspace: uint8 memory where q is, of :func:`workspace_size` bytes, aligned to 256; by default memory that is kept for the stream
            or the thread (while torch captures a graph: new memory of that graph).
        stream: the CUDA stream to compute on: a number, or a stream of torch, CuPy or cuda.core; by default torch's current one for torch
            tensors. Other GPU arrays need one.
        backend: "auto", "cuda", "cpu" or "reference" (float64, slow).
        num_threads: threads on a CPU at most; 0: the default of OpenMP.
        dtype, kv_dtype: "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2": what the numbers of q and out, and of the cache, are where the arrays
            say uint16 or uint8.

    Returns:
        ``(out, lse)``; lse is the natural logarithm of the sum of the exponentials of a row's scaled scores.

    Raises:
        ValueError, TypeError: an argument is refused; nothing was written.
        NotImplementedError: no backend here can do this; the message has each one's reason.
        RuntimeError: the device failed.
    """
    tensor = is_torch(q)
    if tensor:
        import torch
    if tensor and torch.is_grad_enabled():
        refuse_gradients(q=q, kv_cache=kv_cache, out=out, lse=lse)
    if tensor and torch.compiler.is_compiling():
        from mlaverify import torch_op

        if stream is not None or workspace is not None or checked or backend != "auto" or num_threads != 0:
            raise ValueError("verify: stream, workspace, checked, backend and num_threads must be left out under torch.compile")
        options = (qlen, v_head_dim, sm_scale, page_size, real_seq_lens, k_scale, num_kv_splits, batch_invariant, dtype, kv_dtype)
        if out is None and lse is None:
            return torch_op.verify(q, kv_cache, block_table, seq_lens, *options)
        out, lse = outputs(q, v_head_dim, out, lse)
        torch_op.verify_into(q, kv_cache, block_table, seq_lens, out, lse, *options)
        return out, lse
    if out is None or lse is None:
        out, lse = outputs(q, v_head_dim, out, lse)
    needed = _core.verify(
        q, kv_cache, out, lse, block_table, seq_lens, real_seq_lens, k_scale, v_head_dim, qlen, page_size, num_kv_splits, sm_scale,
        batch_invariant, checked, backend, num_threads, dtype, kv_dtype, stream, workspace,
    )  # fmt: skip
    if needed:  # a graph is being captured: it keeps its own memory
        if not tensor:
            raise ValueError(f"workspace: is missing, must be {needed} bytes while the stream is being captured")
        _core.verify(
            q, kv_cache, out, lse, block_table, seq_lens, real_seq_lens, k_scale, v_head_dim, qlen, page_size, num_kv_splits, sm_scale,
            batch_invariant, checked, backend, num_threads, dtype, kv_dtype, stream, q.new_empty(needed, dtype=torch.uint8),
        )  # fmt: skip
    if stream is not None and tensor and q.is_cuda:
        keep_for_stream(stream, q.device, q, kv_cache, out, lse, block_table, seq_lens, real_seq_lens, k_scale, workspace)
    return out, lse


def workspace_size(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    seq_lens: Any,
    *,
    qlen: int,
    v_head_dim: int,
    out: Any,
    lse: Any,
    page_size: int | None = None,
    real_seq_lens: Any = None,
    k_scale: Any = None,
    num_kv_splits: int = 0,
    batch_invariant: bool = False,
    stream: Any = None,
    backend: str = "auto",
    num_threads: int = 0,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> int:
    """Bytes of workspace for :func:`verify` with the same arguments, now and whenever only the numbers in the arrays differ.

    Nothing is computed and no array is read. Raises as :func:`verify` does.
    """
    return _core.workspace_size(
        q, kv_cache, out, lse, block_table, seq_lens, real_seq_lens, k_scale, v_head_dim, qlen, page_size, num_kv_splits, 1.0,
        batch_invariant, False, backend, num_threads, dtype, kv_dtype, stream,
    )  # fmt: skip


def outputs(q: Any, v_head_dim: int, out: Any, lse: Any) -> tuple[Any, Any]:
    """The caller's outputs, and for what is None new ones of the framework of q."""
    shape: Any = getattr(q, "shape", ())
    if not isinstance(shape, (tuple, list)):  # of a class, for example
        shape = ()
    if len(shape) != 3:
        raise ValueError(f"q: got {type(q).__name__} of shape {list(shape)}, must be an array [B*qlen, H, Lk]")
    rows, heads, key_width = shape
    if not is_int(v_head_dim):
        raise TypeError(f"v_head_dim: got {v_head_dim!r}, must be an int")
    if not 8 <= v_head_dim <= key_width:  # before memory of that size is asked for
        # (int(): torch.compile has names for numbers that vary.)
        raise ValueError(f"v_head_dim: got {int(v_head_dim)}, must be in 8 ... {int(key_width)}, the width of q")
    if is_torch(q):
        import torch

        new_out = q.new_empty((rows, heads, v_head_dim)) if out is None else out
        return new_out, q.new_empty((rows, heads), dtype=torch.float32) if lse is None else lse
    origins = [base.__module__.partition(".")[0] for base in type(q).__mro__]
    framework = next((origin for origin in origins if origin in ("numpy", "cupy")), None)
    if framework is None:  # JAX's arrays, for example, never change
        raise TypeError(f"out, lse: are missing, must be given where q is of {origins[0]}: arrays like it cannot be made to write to")
    module = sys.modules[framework]
    with q.device if framework == "cupy" else contextlib.nullcontext():
        new_out = module.empty((rows, heads, v_head_dim), dtype=q.dtype) if out is None else out
        return new_out, module.empty((rows, heads), dtype=module.float32) if lse is None else lse


def is_torch(array: Any) -> bool:
    """Whether `array` is a torch tensor: if so, importing torch costs nothing. (torch.compile traces this, and trips over sys.modules.)"""
    return hasattr(array, "is_cuda")


def is_int(value: Any) -> bool:
    """Whether it is an int, or stands for one, as NumPy's do; arrays with dimensions don't."""
    # Of a number that varies torch.compile knows the type, but no attributes.
    return isinstance(value, int) or (hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0)


def refuse_gradients(**tensors: Any) -> None:
    """ValueError for a tensor that requires a gradient: a result without one would be wrong in training, silently."""
    for name, tensor in tensors.items():
        if getattr(tensor, "requires_grad", False):
            raise ValueError(f"{name}: requires a gradient, which is not computed: detach() it, or use torch.no_grad()")


def keep_for_stream(stream: Any, device: Any, *tensors: Any) -> None:
    """Has torch's allocator keep memory that goes out of use until `stream`, of `device`, is done with it."""
    import torch

    if isinstance(stream, int):
        stream = torch.cuda.ExternalStream(stream, device)
    elif not isinstance(stream, torch.cuda.Stream):
        stream = torch.cuda.ExternalStream(stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else stream.ptr, device)
    for tensor in tensors:
        if is_torch(tensor):
            tensor.record_stream(stream)
