"""What this installation is and can run."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import NamedTuple

from mlaverify import _core


class Backend(NamedTuple):
    """A backend of the library."""

    name: str
    available: bool  # can run on this machine
    detail: str  # what it runs with, or why it cannot


def backends() -> list[Backend]:
    """The backends in order of preference, those that cannot run here included."""
    return [Backend(*backend) for backend in _core.backends()]


def report() -> str:
    """Versions and backends, as lines of text."""
    lines = [f"mlaverify {_core.version()}, {_core.__file__}", f"Python {platform.python_version()}, {sys.executable}"]
    for package in ("torch", "numpy", "vllm"):
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package}: not installed")
    lines.append("backends:")
    for backend in backends():
        lines.append(f"  {backend.name:<10} {'yes' if backend.available else 'no':<4} {backend.detail}")
    return "\n".join(lines)
