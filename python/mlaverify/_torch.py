"""What the package asks of torch, which it never imports on its own: its tensors come from code that has."""

from __future__ import annotations

import sys
from typing import Any


def is_tensor(array: Any) -> bool:
    """Whether `array` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_compiling() -> bool:
    """Whether torch.compile is tracing the caller."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def current_cuda_device() -> int | None:
    """Number of torch's current CUDA device; None without torch or without a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None
