"""Paths of the tests: the float64 oracle lives with the conformance cases, and shares no code with the library."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

from vllm_stand_in import make_vllm  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "conformance"))

settings.register_profile("repository", deadline=None, print_blob=True)
settings.load_profile("repository")


def pytest_addoption(parser):
    parser.addoption("--vllm-wheel", help="compare with this wheel of vLLM, or with the newest on PyPI: 'download'")


def pytest_collection_modifyitems(items):
    """Tests marked `torch` or `gpu` are skipped where there is none; the summary says so."""
    missing = {}
    try:
        import torch

        if not torch.cuda.is_available():
            missing["gpu"] = "needs a CUDA GPU that torch sees (torch.cuda.is_available())"
    except ImportError as error:
        missing["torch"] = missing["gpu"] = f"needs torch: {error}"
    for item in items:
        for mark, reason in missing.items():
            if mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
