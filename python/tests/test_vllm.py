"""vLLM with this library's functions in place of its own: a stand-in for vLLM, and, where asked for, the real one's source.

pytest python/tests/test_vllm.py --vllm-wheel download     # the newest wheel of PyPI, some 350 MB, in pytest's temporary folder
pytest python/tests/test_vllm.py --vllm-wheel FILE.whl
"""

import ast
import logging
import subprocess
import sys
import types
import zipfile
from importlib import metadata

import numpy as np
import pytest

import mlaverify
from mlaverify import decode_attention, vllm
from vllm_stand_in import DECODE, SOURCE

FILE = vllm.MODULE.replace(".", "/") + ".py"


def test_install_and_uninstall(make_vllm):
    module, user = make_vllm(SOURCE + DECODE)
    before = dict(module.__dict__)
    names = vllm.install()
    assert names == sorted(decode_attention.replacements()) == vllm.install()
    for name, value in decode_attention.replacements().items():
        assert getattr(module, name) is value and getattr(user, name) is value
    assert module.decode_attention_fwd is before["decode_attention_fwd"]
    vllm.uninstall()
    for name in names:
        assert getattr(module, name) is before[name] and getattr(user, name) is before[name]


def test_refusals(make_vllm, monkeypatch, caplog):
    make_vllm(DECODE)
    with pytest.raises(RuntimeError, match=r"vLLM 0.99: vllm.v1\S+ has no decode_attention_fwd_verify; install\(decode=True\)"):
        vllm.install()
    with caplog.at_level(logging.INFO):
        vllm.plugin()
    assert "mlaverify does nothing: vLLM 0.99" in caplog.text
    module, _ = make_vllm(SOURCE.replace("sm_scale, page_size, k_scale=None): ...", "sm_scale, page_size, k_scale=None, window=0): ..."))
    before = dict(module.__dict__)
    with pytest.raises(RuntimeError, match="decode_attention_fwd_verify takes .*window=0.*, must be"):
        vllm.install()
    assert module.__dict__ == before
    make_vllm(SOURCE.replace("def verify_row_blocks", "def other"))
    with pytest.raises(RuntimeError, match="has no verify_row_blocks"):
        vllm.install()

    monkeypatch.setitem(sys.modules, vllm.MODULE, None)  # as in a vLLM that keeps it elsewhere
    with pytest.raises(RuntimeError, match=f"vLLM 0.99: import of {vllm.MODULE} halted"):
        vllm.install()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RuntimeError, match="vLLM is not installed"):
        vllm.install()


def test_decode_comes_on_top(make_vllm):
    """The plugin has installed the rest before a program asks for it."""
    module, _ = make_vllm(SOURCE + DECODE)
    own = module.decode_attention_fwd
    vllm.plugin()
    assert module.decode_attention_fwd is own
    assert vllm.install(decode=True) == sorted([*decode_attention.replacements(), "decode_attention_fwd"]) == vllm.install()
    assert module.decode_attention_fwd is not own
    vllm.uninstall()
    assert module.decode_attention_fwd is own and module.verify_row_blocks is not mlaverify.verify_row_blocks


@pytest.mark.parametrize("error", [AttributeError("x"), ValueError("no signature"), OSError("x")])
def test_plugin_never_raises(make_vllm, monkeypatch, caplog, error):
    """vLLM calls it unguarded, on every platform that it runs on."""
    make_vllm(SOURCE)

    def refuse():
        raise error

    monkeypatch.setattr(vllm, "_refuse_machine", refuse)
    vllm.plugin()
    assert "mlaverify does nothing, after an unexpected error" in caplog.text and str(error) in caplog.text
    assert not vllm._installed


def test_plugin_switched_off(make_vllm, monkeypatch, caplog):
    module, _ = make_vllm(SOURCE)
    before = dict(module.__dict__)
    monkeypatch.setenv("MLAVERIFY_VLLM", "0")
    with caplog.at_level(logging.INFO):
        vllm.plugin()
    assert module.__dict__ == before and "mlaverify does nothing: MLAVERIFY_VLLM is 0" in caplog.text
    monkeypatch.delenv("MLAVERIFY_VLLM")
    with caplog.at_level(logging.INFO):
        vllm.plugin()
    assert module.verify_row_blocks is mlaverify.verify_row_blocks and "mlaverify stands in for VERIFY_DEFAULT_CONFIG" in caplog.text


def test_plugin_speaks_through_vllms_log():
    """vLLM sets up its own logger alone: INFO of others is not seen."""
    assert vllm._logger.name.startswith("vllm.")


class Platform:
    """vLLM's description of what it runs on."""

    device_name = "cpu"

    def __init__(self, cuda=True, capability=90):
        self.is_cuda = lambda: cuda
        self.has_device_capability = lambda least: capability >= least


@pytest.mark.torch
def test_machines(monkeypatch):
    torch = pytest.importorskip("torch")
    platforms = types.SimpleNamespace(current_platform=Platform())
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setattr(vllm._core, "with_cuda", lambda: True)
    vllm._refuse_machine()
    for platform, reason in [(Platform(cuda=False), "vLLM runs on cpu"), (Platform(capability=75), "compute capability is below 8.0")]:
        platforms.current_platform = platform
        with pytest.raises(RuntimeError, match=reason):
            vllm._refuse_machine()
    platforms.current_platform = Platform()
    with monkeypatch.context() as change, pytest.raises(RuntimeError, match="VLLM_BATCH_INVARIANT is set"):
        change.setenv("VLLM_BATCH_INVARIANT", "1")
        vllm._refuse_machine()
    with monkeypatch.context() as change, pytest.raises(RuntimeError, match="for AMD GPUs"):
        change.setattr(torch.version, "hip", "6.4")
        vllm._refuse_machine()
    monkeypatch.setattr(vllm._core, "with_cuda", lambda: False)
    with pytest.raises(RuntimeError, match="has no CUDA support"):
        vllm._refuse_machine()


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [("a, b, c=1", True), ("a, b, c", True), ("a, c=1, b=2", False), ("a, b, c=2", False), ("a, b=2, c=1", False), ("a, b", False)],
)
def test_stands_in(theirs, expected):
    def ours(a, b, c=1): ...

    function = eval(f"lambda {theirs}: None")
    assert vllm.stands_in(vllm.parameters(ours), vllm.parameters(function)) is expected


def test_plugin_is_registered():
    entry = next(e for e in metadata.entry_points(group="vllm.general_plugins") if e.name == "mlaverify")
    assert entry.load() is vllm.plugin


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("lse_type", ["float32", "bfloat16"])
def test_decode(make_vllm, device, lse_type):
    """Verify steps as vLLM's Triton backend computes them today: a row for each token."""
    torch = pytest.importorskip("torch")
    from torch_step import TorchStep

    module, user = make_vllm(DECODE)
    original = module.decode_attention_fwd
    assert vllm.install(decode=True) == ["decode_attention_fwd"]
    step = TorchStep([130, 77, 0], device, dtype="bf16")
    table = step.block_table.repeat_interleave(step.qlen, dim=0)
    lens = (step.seq_lens[:, None] + torch.arange(1 - step.qlen, 1, dtype=torch.int32, device=device)).flatten().clamp(min=0)
    out, lse = step.outputs()
    lse = lse.to(getattr(torch, lse_type))
    logits = torch.empty((*step.q.shape[:2], 4, step.lv + 1), device=device)
    values = step.kv_cache[..., : step.lv]
    call = (step.q, step.kv_cache, values, out, lse, table, lens, logits, 4, step.sm_scale, step.page_size)
    user.decode_attention_fwd(*call, is_mla=True)
    assert module.calls == []
    step.check(out, lse.float() if lse_type == "float32" else torch.from_numpy(step.expected[1]))
    np.testing.assert_allclose(lse.float().cpu(), step.expected[1], rtol=1e-2)
    user.decode_attention_fwd(*call)  # no MLA
    user.decode_attention_fwd(*call, logit_cap=30.0, is_mla=True)
    assert len(module.calls) == 2
    vllm.uninstall()
    assert module.decode_attention_fwd is original and user.decode_attention_fwd is original


def test_the_real_one(request, tmp_path):
    """Names, order and defaults of the arguments in vLLM's source, and the keys of its configuration."""
    wheel = request.config.getoption("--vllm-wheel")
    if wheel is None:
        pytest.skip("needs a wheel of vLLM: --vllm-wheel FILE, or --vllm-wheel download for the newest on PyPI (some 500 MB)")
    if wheel == "download":
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, "vllm>=0.33"], check=True)
        wheel = next(tmp_path.glob("vllm-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        tree = ast.parse(archive.read(FILE))
    functions = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    ours = {name: value for name, value in decode_attention.replacements().items() if callable(value)}
    theirs = set(ours) & set(functions)
    if vllm.VERIFY in functions:
        assert theirs == set(ours)
        assert set(literal(tree, "VERIFY_DEFAULT_CONFIG")) <= set(mlaverify.VERIFY_DEFAULT_CONFIG)
    else:  # as up to 0.33: nothing of it, and install() refuses
        assert theirs == set()
    ours["decode_attention_fwd"] = vllm._decode_attention_fwd(None)
    for name in sorted(theirs | {"decode_attention_fwd"}):
        assert vllm.stands_in(vllm.parameters(ours[name]), parameters_of(functions[name])), name


def parameters_of(arguments):
    """(name, default) of the arguments of a function in an ast."""
    assert not (arguments.kwonlyargs or arguments.posonlyargs or arguments.vararg or arguments.kwarg)
    defaults = [ast.literal_eval(d) for d in arguments.defaults]
    required = len(arguments.args) - len(defaults)
    return [(a.arg, vllm.REQUIRED if i < required else defaults[i - required]) for i, a in enumerate(arguments.args)]


def literal(tree, name):
    """The value of a constant at the top of a module."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"no {name}")
