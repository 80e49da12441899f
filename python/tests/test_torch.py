"""torch tensors, on a CPU and on a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import mlaverify
from mlaverify import _verify, decode_attention
from step import REFUSED_WIDTHS
from torch_step import TORCH_TYPES, TorchStep

pytestmark = pytest.mark.torch
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
TYPES = [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("bf16", "f8_e4m3"), ("f16", "f8_e5m2")]


class Subclass(torch.Tensor):
    pass


@on_each_device
@pytest.mark.parametrize(("dtype", "kv_dtype"), TYPES)
def test_types(device, dtype, kv_dtype):
    step = TorchStep(
        [130, 7, 0], device, dtype=dtype, kv_dtype=kv_dtype, k_scale=0.05 if kv_dtype.startswith("f8") else None, real=[120, 9, 0]
    )
    out, lse = mlaverify.verify(*step.arrays(), **step.options())
    assert (out.dtype, lse.dtype, out.device, lse.device) == (TORCH_TYPES[dtype], torch.float32, step.q.device, step.q.device)
    step.check(out, lse)


@on_each_device
def test_wide_heads(device):
    step = TorchStep([700, 1, 65], device, dtype="bf16", lk=576, lv=512, heads=16, page=64)
    step.check(*mlaverify.verify(*step.arrays(), **step.options()))
    out, lse = step.outputs()
    mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse))
    step.check(out, lse)


@on_each_device
def test_bytes_as_fp8(device):
    step = TorchStep([40, 3], device, dtype="bf16", kv_dtype="f8_e4m3", k_scale=0.05)
    step.kv_cache = step.kv_cache.view(torch.uint8)
    step.check(*mlaverify.verify(*step.arrays(), **step.options(), kv_dtype="f8_e4m3"))
    with pytest.raises(TypeError, match="kv_cache: got uint8, must be .* say what its bits are"):
        mlaverify.verify(*step.arrays(), **step.options())


@on_each_device
def test_slices_are_taken_as_they_are(device):
    """A cache that is a part of a larger one, queries and outputs that are parts of wider tensors."""
    step = TorchStep([130, 77], device, dtype="bf16", page=16)
    pages, page, _, lk = step.kv_cache.shape
    whole = torch.full((pages, 2, page, 1, lk), float("nan"), dtype=torch.bfloat16, device=device)
    whole[:, 1] = step.kv_cache
    step.kv_cache = whole[:, 1]
    wide = torch.full((step.q.shape[0], step.q.shape[1] + 2, lk + 64), float("nan"), dtype=torch.bfloat16, device=device)
    wide[:, 1:-1, :lk] = step.q
    step.q = wide[:, 1:-1, :lk]
    around = torch.full((*wide.shape[:2], step.lv + 8), 7, dtype=torch.bfloat16, device=device)
    lse = torch.empty((wide.shape[1], wide.shape[0]), device=device)[1:-1].t()
    out, lse = mlaverify.verify(*step.arrays(), **step.options(), out=around[:, 1:-1, : step.lv], lse=lse)
    step.check(out, lse)
    out.fill_(7)
    assert torch.all(around == 7)


@on_each_device
def test_subclasses(device):
    step = TorchStep([40], device)

    step.q, step.kv_cache = step.q.as_subclass(Subclass), torch.nn.Parameter(step.kv_cache, requires_grad=False)
    out, lse = step.outputs()
    mlaverify.verify(*step.arrays(), **step.options(), out=out, lse=lse)
    step.check(out.as_subclass(torch.Tensor), lse)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_refused():
    step = TorchStep([40], "cpu")
    q, kv_cache, block_table, seq_lens = step.arrays()
    options = step.options()
    for arrays, error, message in [
        ((q, kv_cache, block_table, seq_lens.long()), TypeError, "seq_lens: got int64, must be int32"),
        ((q.to("meta"), kv_cache, block_table, seq_lens), TypeError, "q: got an array without memory to look at"),
        ((q.clone().requires_grad_(), kv_cache, block_table, seq_lens), ValueError, "q: requires a gradient"),
        ((q, kv_cache.clone().requires_grad_(), block_table, seq_lens), ValueError, "kv_cache: requires a gradient"),
        ((q.to(torch.float64), kv_cache, block_table, seq_lens), TypeError, "q: got float64, must be f32"),
        ((q, kv_cache, block_table, seq_lens.bool()), TypeError, "seq_lens: got bool of bits 8, must be int32"),
        ((torch.complex(q, q), kv_cache, block_table, seq_lens), TypeError, "q: got complex64, must be f32"),
        ((q.half(), kv_cache, block_table, seq_lens[:0]), ValueError, r"seq_lens: got shape \[0\], must be \[1\]"),
    ]:
        with pytest.raises(error, match=message):
            mlaverify.verify(*arrays, **options)
    out, lse = step.outputs()
    with pytest.raises(ValueError, match="out: requires a gradient"):
        mlaverify.verify(q, kv_cache, block_table, seq_lens, **options, out=out.clone().requires_grad_())
    with pytest.raises(ValueError, match="lse: requires a gradient"):
        mlaverify.verify(q, kv_cache, block_table, seq_lens, **options, lse=lse.clone().requires_grad_())
    with torch.no_grad():
        step.check(*mlaverify.verify(q.clone().requires_grad_(), kv_cache, block_table, seq_lens, **options))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(q.shape)
    out, lse = step.outputs()
    with pytest.raises(ValueError, match="q: got a null pointer"):
        mlaverify.verify(fake, kv_cache, block_table, seq_lens, **options, out=out, lse=lse)


@pytest.mark.parametrize(("v_head_dim", "error", "message"), REFUSED_WIDTHS)
def test_refused_before_outputs_are_made(v_head_dim, error, message):
    step = TorchStep([40], "cpu")
    with pytest.raises(error, match=message):
        mlaverify.verify(*step.arrays(), **{**step.options(), "v_head_dim": v_head_dim})


@pytest.mark.parametrize("name", ["q", "kv_cache", "seq_lens", "k_scale", "out", "lse"])
@pytest.mark.parametrize("subclass", [False, True])
def test_numbers_of_the_other_sign_are_refused(name, subclass):
    """Memory holds the negatives of a tensor with the negative bit."""
    step = TorchStep([40], "cpu", kv_dtype="f8_e4m3", k_scale=0.05)
    out, lse = step.outputs()
    arguments = {**dict(zip(("q", "kv_cache", "block_table", "seq_lens"), step.arrays())), **step.options(), "out": out, "lse": lse}
    plain = arguments[name]
    if name == "kv_cache":
        arguments[name] = plain.view(torch.uint8)
    negative = torch.complex(plain, plain).conj().imag if name == "k_scale" else torch._neg_view(arguments[name])
    arguments[name] = negative.as_subclass(Subclass) if subclass else negative
    with pytest.raises(ValueError, match=f"{name}: got a tensor with the negative bit set, must be without it: call its resolve_neg"):
        mlaverify.verify(**arguments, kv_dtype="f8_e4m3")
    assert torch.isnan(out).all() and torch.isnan(lse).all()
    step.k_scale = -torch.complex(step.k_scale, step.k_scale).conj().imag.resolve_neg()
    step.check(*mlaverify.verify(*step.arrays(), **step.options()))


def test_complex_numbers_are_refused():
    step = TorchStep([40], "cpu")
    out, lse = step.outputs()
    for q in (torch.complex(step.q, step.q), torch.complex(step.q, step.q).conj()):
        with pytest.raises(TypeError, match="q: got .*, must be f32, f16, bf16, f8_e4m3 or f8_e5m2"):
            mlaverify.verify(q, *step.arrays()[1:], **step.options(), out=out, lse=lse)


def test_triton_form_refuses_gradients():
    step = TorchStep([40], "cpu")
    out, lse = step.outputs()
    step.kv_cache.requires_grad_()
    with pytest.raises(ValueError, match="k_buffer: requires a gradient"):
        mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse))
    with torch.no_grad():
        mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse))
    step.kv_cache.requires_grad_(False)
    with pytest.raises(ValueError, match="^o: requires a gradient"):
        mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out.clone().requires_grad_(), lse))
    step.check(out, lse)


def test_a_given_stream_is_of_the_device_of_q(monkeypatch):
    """The current device may be another."""
    made = []

    class Stream:
        pass

    def external(number, device=None):
        made.append((number, device))

    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    device = torch.device("cuda", 1)
    _verify.keep_for_stream(7, device)
    _verify.keep_for_stream(type("Protocol", (), {"__cuda_stream__": lambda self: (0, 8)})(), device)
    assert made == [(7, device), (8, device)]


@on_each_device
@pytest.mark.parametrize("splits", [0, 1, 7])
@pytest.mark.parametrize("logits", ["none", "enough", "small"])
def test_triton_form(device, splits, logits):
    step = TorchStep([900, 77, 0], device, dtype="bf16", heads=16, lk=576, lv=512, page=64)
    out, lse = step.outputs()
    shape = (*step.q.shape[:2], {"enough": 300, "small": max(splits, 1)}.get(logits, 1), step.lv + 1)
    attn_logits = None if logits == "none" else torch.empty(shape, device=device)
    mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse, splits, attn_logits))
    step.check(out, lse)


@on_each_device
def test_warmup(device):
    step = TorchStep([900, 77], device, dtype="bf16", heads=16, lk=576, lv=512, page=64)
    out, lse = step.outputs()
    logits = torch.empty((*step.q.shape[:2], 2, step.lv + 1), device=device)
    mlaverify.warmup_decode_attention_fwd_verify(
        step.q, step.kv_cache, out, lse, step.block_table, False, [1, 4], logits, step.sm_scale, step.page_size, None
    )
    assert torch.isnan(out).all() and torch.isnan(lse).all()
    mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse, 2, logits))
    step.check(out, lse)


def test_torch_without_the_exchange_interface():
    """Versions before 2.10: tensors are read by their attributes, float8 among them, which their DLPack refuses."""
    program = """
import sys, torch
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
sys.path[:0] = sys.argv[1:]
import mlaverify
from torch_step import TorchStep
step = TorchStep([130, 7], "cuda" if torch.cuda.is_available() else "cpu", dtype="bf16", kv_dtype="f8_e5m2", k_scale=0.05)
step.check(*mlaverify.verify(*step.arrays(), **step.options()))
out, lse = step.outputs()
mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse))
step.check(out, lse)
"""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests" / "conformance")]
    done = subprocess.run([sys.executable, "-c", program, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_storage_view():
    t = torch.arange(24.0).view(4, 6)
    view = decode_attention._storage_view(t[1:, ::2], (3, 8))
    assert view.shape == (3, 8) and view.is_contiguous() and view.data_ptr() == t.data_ptr()
    new = decode_attention._storage_view(t, (5, 5))
    for bad, shape, error, message in [
        (t.numpy(), (3, 8), TypeError, "t: got ndarray, must be a torch tensor"),
        (t, (-1,), ValueError, r"shape: got \(-1,\), must be ints >= 0"),
        (t, (1.5, 2), ValueError, r"shape: got \(1.5, 2\), must be ints >= 0"),
        (t, 5, ValueError, "shape: got 5, must be ints >= 0"),
    ]:
        with pytest.raises(error, match=message):
            decode_attention._storage_view(bad, shape)
    assert new.shape == (5, 5) and new.dtype == t.dtype and new.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()


@on_each_device
def test_config_of_the_current_device(device):
    config = mlaverify.select_verify_config(8, 4, 16)
    assert (config["num_warps"] > 0) == torch.cuda.is_available()
