"""The custom operators: opcheck, torch.compile, fake tensors."""

import pytest

torch = pytest.importorskip("torch")

import mlaverify
from mlaverify import torch_op
from step import REFUSED_WIDTHS
from torch_step import TorchStep

pytestmark = pytest.mark.torch
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture(autouse=True)
def compile_anew():
    """Else a function that was compiled for many tests is at torch's limit."""
    torch._dynamo.reset()


def operator_arguments(step):
    return (*step.arrays(), step.qlen, step.lv, step.sm_scale, step.page_size, step.real_seq_lens, step.k_scale)


@on_each_device
@pytest.mark.parametrize("kv_dtype", ["bf16", "f8_e4m3"])
def test_opcheck(device, kv_dtype):
    step = TorchStep([40, 9], device, dtype="bf16", kv_dtype=kv_dtype, k_scale=0.1, real=[39, 20])
    # opcheck compares inputs before and after, which torch can do neither with NaN nor with FP8 on a CPU.
    step.kv_cache = torch.nan_to_num(step.kv_cache.float()).to(step.kv_cache.dtype)
    types = {}
    if kv_dtype == "f8_e4m3":
        step.kv_cache, types = step.kv_cache.view(torch.uint8), {"kv_dtype": kv_dtype}
    arguments = operator_arguments(step)
    torch.library.opcheck(torch.ops.mlaverify.verify.default, arguments, types)
    out, lse = (torch.zeros_like(t) for t in step.outputs())
    torch.library.opcheck(torch.ops.mlaverify.verify_into.default, (*arguments[:4], out, lse, *arguments[4:]), types)
    if types:
        return  # the Triton form has no argument for them
    logits = torch.zeros((*step.q.shape[:2], 2, step.lv + 1), device=device)
    for splits, attn_logits in [(1, None), (2, logits)]:
        triton = step.triton_arguments(out, lse, splits, attn_logits)
        torch.library.opcheck(torch.ops.mlaverify.decode_attention_fwd_verify.default, triton)


@on_each_device
def test_operators_compute(device):
    step = TorchStep([130, 9], device, dtype="bf16", heads=16, lk=576, lv=512)
    step.check(*torch.ops.mlaverify.verify(*operator_arguments(step)))
    out, lse = step.outputs()
    arguments = operator_arguments(step)
    assert torch_op.verify_into(*arguments[:4], out, lse, *arguments[4:]) is None
    step.check(out, lse)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    step = TorchStep([40, 9], "cpu", dtype="f16")
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        arguments = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in operator_arguments(step)]
        out, lse = torch.ops.mlaverify.verify(*arguments)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((8, 4, 64), torch.float16, (8, 4), torch.float32)


def layer(q, kv_cache, block_table, seq_lens, outputs, **options):
    """verify() between two other operators."""
    out, lse = mlaverify.verify(q * 1, kv_cache, block_table, seq_lens, **options, **outputs)
    return out + 0, lse + 0


def chosen(step, names):
    """Of out and lse those with these names."""
    return {name: array for name, array in zip(("out", "lse"), step.outputs()) if name in names}


@on_each_device
@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("given", [(), ("out",), ("lse",), ("out", "lse")])
def test_compile(device, dynamic, given):
    """The plain functions under torch.compile, without a graph break, with whatever varies."""
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lens, changes in [([130, 9], {}), ([40, 30, 20], {}), ([40, 30], {"qlen": 2}), ([40], {"lv": 56}), ([40], {"lk": 80, "lv": 72})]:
        step = TorchStep(lens, device, dtype="bf16", **changes)
        outputs = chosen(step, given)
        step.check(*compiled(*step.arrays(), outputs, **step.options()))
        if len(outputs) == 2:
            step.check(**outputs)


@on_each_device
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_all_options(device, dynamic):
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lens, splits in [([130, 9], 3), ([40, 30, 20], 2)]:
        step = TorchStep(lens, device, dtype="bf16", kv_dtype="f8_e4m3", k_scale=0.05, real=[n - 2 for n in lens])
        step.kv_cache = step.kv_cache.view(torch.uint8)
        more = {"kv_dtype": "f8_e4m3", "dtype": "bf16", "num_kv_splits": splits, "batch_invariant": True}
        for given in [(), ("out", "lse")]:
            step.check(*compiled(*step.arrays(), chosen(step, given), **step.options(), **more))


@on_each_device
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_triton_form(device, dynamic):
    def triton_layer(out, *arguments):
        mlaverify.decode_attention_fwd_verify(*arguments)
        return out + 0

    compiled = torch.compile(triton_layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lens, splits in [([130, 9], 1), ([40, 30, 20], 2)]:
        step = TorchStep(lens, device, dtype="bf16")
        out, lse = step.outputs()
        logits = torch.empty((*step.q.shape[:2], splits, step.lv + 1), device=device)
        step.check(compiled(out, *step.triton_arguments(out, lse, splits, logits)), lse)


@pytest.mark.parametrize(("v_head_dim", "error", "message"), REFUSED_WIDTHS)
@pytest.mark.parametrize("given", [(), ("out",), ("out", "lse")])
def test_compile_refuses_widths(v_head_dim, error, message, given):
    """With the same words, in an exception of torch's; the operator itself refuses what is no int with torch's words."""
    if error is TypeError and not given:
        message = "v_head_dim' but instead found type"
    step = TorchStep([40], "cpu")
    options = {**step.options(), "v_head_dim": v_head_dim}
    for dynamic in (False, True) if isinstance(v_head_dim, int) else (False,):
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        with pytest.raises(Exception, match=message):
            compiled(*step.arrays(), chosen(step, given), **options)
    if given:  # where a graph may break, the call is as without torch.compile
        with pytest.raises(error, match="v_head_dim: got"):
            torch.compile(layer, backend="aot_eager")(*step.arrays(), chosen(step, given), **options)


@pytest.mark.parametrize("given", [(), ("out", "lse")])
def test_compile_refuses_gradients(given):
    step = TorchStep([40], "cpu")
    step.q.requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="q: requires a gradient"):
        compiled(*step.arrays(), chosen(step, given), **step.options())
    with torch.no_grad():
        step.check(*compiled(*step.arrays(), chosen(step, given), **step.options()))


def test_compile_triton_form_refuses_gradients():
    step = TorchStep([40], "cpu")
    step.kv_cache.requires_grad_()
    arguments = step.triton_arguments(*step.outputs())
    with pytest.raises(Exception, match="k_buffer: requires a gradient"):
        torch.compile(lambda: mlaverify.decode_attention_fwd_verify(*arguments), fullgraph=True, backend="aot_eager")()


def test_compile_refuses_what_the_operator_has_not():
    step = TorchStep([40], "cpu")
    compiled = torch.compile(lambda: mlaverify.verify(*step.arrays(), **step.options(), num_threads=1), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="must be left out under torch.compile"):
        compiled()
