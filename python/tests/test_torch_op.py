"""The custom operators: opcheck, torch.compile, fake tensors."""

import pytest

torch = pytest.importorskip("torch")

import mlaverify
from mlaverify import torch_op
from torch_step import TorchStep

pytestmark = pytest.mark.torch
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


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


@on_each_device
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device, dynamic):
    """The plain functions under torch.compile, without a graph break."""

    def layer(q, kv_cache, block_table, seq_lens, out, lse, **options):
        first, _ = mlaverify.verify(q * 1, kv_cache, block_table, seq_lens, **options)
        mlaverify.verify(q, kv_cache, block_table, seq_lens, **options, out=out, lse=lse)
        return first + 0, out + 0, lse + 0

    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lens in ([130, 9], [40, 30, 20]):
        step = TorchStep(lens, device, dtype="bf16")
        first, second, lse = compiled(*step.arrays(), *step.outputs(), **step.options())
        step.check(first, lse)
        step.check(second, lse)


@on_each_device
def test_compile_triton_form(device):
    def layer(out, *arguments):
        mlaverify.decode_attention_fwd_verify(*arguments)
        return out + 0

    step = TorchStep([130, 9], device, dtype="bf16")
    out, lse = step.outputs()
    step.check(torch.compile(layer, fullgraph=True, backend="aot_eager")(out, *step.triton_arguments(out, lse)), lse)


def test_compile_refuses_what_the_operator_has_not():
    step = TorchStep([40], "cpu")
    compiled = torch.compile(lambda: mlaverify.verify(*step.arrays(), **step.options(), num_threads=1), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="must be left out under torch.compile"):
        compiled()
