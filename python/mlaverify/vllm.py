"""Puts this library's functions in the place of vLLM's Triton functions.

``install()`` in a program that runs vLLM, or nothing at all: vLLM loads :func:`plugin` in each of its processes where the package is
installed. ``MLAVERIFY_VLLM=0`` in the environment switches that off (``VLLM_PLUGINS``, vLLM's own, names the plugins to load, if not all).
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from importlib import metadata
from typing import Any

from mlaverify import _core
from mlaverify.decode_attention import replacements

MODULE = "vllm.v1.attention.ops.triton_decode_attention"
VERIFY = "decode_attention_fwd_verify"
DECODE = "decode_attention_fwd"
SWITCH = "MLAVERIFY_VLLM"

_logger = logging.getLogger("vllm.plugins.mlaverify")  # below vLLM's own, whose handler and level are the ones that are set up
_installed: dict[str, tuple[Any, Any]] = {}  # name: vLLM's own, ours


def install(decode: bool = False) -> list[str]:
    """Replaces vLLM's functions that verify several tokens a request, wherever vLLM's modules have them. What is replaced already stays so.

    Args:
        decode: replace ``decode_attention_fwd`` as well (and alone, where vLLM has no others): it computes one token a row, and where a
            request has several, each reads the cache anew. Calls that are no MLA, or cap logits, still go to vLLM's own.

    Returns:
        The names replaced, by this call and those before.

    Raises:
        RuntimeError: vLLM is not installed, has no such functions, they take other arguments, or this library cannot stand in for them
            here; the message says which. Nothing was replaced.
    """
    if _installed and (not decode or DECODE in _installed):
        return sorted(_installed)
    version = _vllm_version()
    try:
        _refuse_machine()
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise RuntimeError(f"vLLM {version}: {error}") from error
    ours = replacements() if hasattr(module, VERIFY) else {}
    if decode:
        ours[DECODE] = _decode_attention_fwd(getattr(module, DECODE, None))
    elif not ours:
        raise RuntimeError(
            f"vLLM {version}: {MODULE} has no {VERIFY}; install(decode=True) replaces decode_attention_fwd, which computes one token a row"
        )
    pairs = {name: (getattr(module, name, None), value) for name, value in ours.items() if name not in _installed}
    for name, (theirs, value) in pairs.items():
        if theirs is None:
            raise RuntimeError(f"vLLM {version}: {MODULE} has no {name}")
        if callable(value) and not stands_in(parameters(value), parameters(theirs)):
            raise RuntimeError(
                f"vLLM {version}: {name} takes {inspect.signature(theirs)}, must be {inspect.signature(value)} for this library to stand in"
            )
    for name, (theirs, value) in pairs.items():
        _replace(name, theirs, value)
    _installed.update(pairs)
    return sorted(_installed)


def uninstall() -> None:
    """Puts vLLM's own functions back."""
    for name, (theirs, value) in _installed.items():
        _replace(name, value, theirs)
    _installed.clear()


def plugin() -> None:
    """What vLLM calls where this package is installed: install(), or a line in the log that says why not. Never raises."""
    if os.environ.get(SWITCH, "1") == "0":
        _logger.info("mlaverify does nothing: %s is 0", SWITCH)
        return
    try:
        _logger.info("mlaverify stands in for %s (%s=0 switches it off)", ", ".join(install()), SWITCH)
    except RuntimeError as reason:
        _logger.info("mlaverify does nothing: %s", reason)
    except Exception:  # vLLM would not start: it calls its plugins unguarded
        _logger.warning("mlaverify does nothing, after an unexpected error", exc_info=True)


def _vllm_version() -> str:
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        raise RuntimeError("vLLM is not installed") from None


def _refuse_machine() -> None:
    """(Asks the device by way of vLLM alone: it may fork processes yet, in which CUDA would not work if it had been used before.)"""
    torch = importlib.import_module("torch")
    if getattr(torch.version, "hip", None) is not None:
        raise RuntimeError("this torch is for AMD GPUs, which this library does not run on")
    if not _core.with_cuda():
        raise RuntimeError("this build of mlaverify has no CUDA support")
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cuda():
        raise RuntimeError(f"vLLM runs on {getattr(platform, 'device_name', 'another platform')}, must be an NVIDIA GPU")
    if not platform.has_device_capability(80):
        raise RuntimeError("the GPU's compute capability is below 8.0, the least that this library runs on")
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        raise RuntimeError("VLLM_BATCH_INVARIANT is set, and what stands in for vLLM's functions is not batch-invariant")


REQUIRED = inspect.Parameter.empty  # the default of an argument that has none


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Names and defaults of a function's arguments, in order."""
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def stands_in(ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]]) -> bool:
    """Whether each call of `theirs` is one of `ours`: the same arguments in the same order, with the same defaults where they have some."""
    return [name for name, _ in ours] == [name for name, _ in theirs] and all(
        their_default in (REQUIRED, our_default) for (_, our_default), (_, their_default) in zip(ours, theirs)
    )


def _replace(name: str, old: Any, new: Any) -> None:
    """In every module of vLLM, since `from ... import` made names of their own."""
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "vllm" and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _decode_attention_fwd(theirs: Any) -> Any:
    def decode_attention_fwd(
        q,
        k_buffer,
        v_buffer,
        o,
        lse,
        req_to_token,
        b_seq_len,
        attn_logits,
        num_kv_splits,
        sm_scale,
        page_size=1,
        logit_cap=0.0,
        k_scale=None,
        v_scale=None,
        is_mla=False,
    ):
        """One token a row, each row with its own length and block table; lse may be of any type."""
        if not is_mla or logit_cap > 0 or k_buffer.shape[-2] != 1 or k_scale is not v_scale:
            theirs(
                q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits, sm_scale, page_size, logit_cap, k_scale,
                v_scale, is_mla,
            )  # fmt: skip
            return
        float32 = sys.modules["torch"].float32
        exact = lse if lse.dtype == float32 else lse.new_empty(lse.shape, dtype=float32)
        _core.decode_attention_fwd_verify(
            q, k_buffer, v_buffer, o, exact, req_to_token, b_seq_len, None, 1, attn_logits, num_kv_splits, sm_scale, page_size, k_scale
        )
        if exact is not lse:
            lse.copy_(exact)

    return decode_attention_fwd
