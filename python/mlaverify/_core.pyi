"""The C++ part of the package. Positional arguments only."""

from typing import Any

# The arguments of a call, in this order: q, kv_cache, out, lse, block_table, seq_lens, real_seq_lens, k_scale, v_head_dim, qlen, page_size,
# num_kv_splits, sm_scale, batch_invariant, checked, backend, num_threads, dtype, kv_dtype, stream.

def verify(*arguments_and_workspace: Any) -> int:
    """Computes. 0, or, having done nothing, the bytes of workspace that a call needs whose stream is being captured."""

def workspace_size(*arguments: Any) -> int: ...
def decode_attention_fwd_verify(*arguments: Any) -> None:
    """The arguments of mlaverify.decode_attention_fwd_verify."""

def warmup(*arguments: Any) -> None:
    """The arguments of mlaverify.warmup_decode_attention_fwd_verify, qlens as a list."""

def select_verify_config(batch: int, qlen: int, num_heads: int, device: int, arch: str | None, /) -> dict[str, int]: ...
def verify_num_kv_splits(
    max_seq_len: int,
    batch: int,
    qlen: int,
    num_heads: int,
    sm_count: int,
    block_h: int,
    occupancy: float,
    min_work_per_split: int,
    max_splits: int,
    /,
) -> int: ...
def backends() -> list[tuple[str, bool, str]]:
    """Name, whether it can run here, what with or why not."""

def with_cuda() -> bool:
    """Whether this build has CUDA support; asks no device."""

def version() -> str: ...
