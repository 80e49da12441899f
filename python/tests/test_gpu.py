"""What only a GPU shows: streams, graphs, memory that goes out of use, other frameworks' arrays."""

import gc
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mlaverify
from torch_step import TorchStep

pytestmark = [pytest.mark.torch, pytest.mark.gpu]

WIDE = {"dtype": "bf16", "heads": 16, "lk": 576, "lv": 512, "page": 64}


def delay(milliseconds=20):
    """Keeps the current stream busy, so that what follows is queued."""
    torch.cuda._sleep(int(milliseconds * 1e6))


def test_the_current_stream_is_used():
    step = TorchStep([900, 77], "cuda", **WIDE)
    q, stream = step.q.clone(), torch.cuda.Stream()
    with torch.cuda.stream(stream):  # a first call may load kernels
        mlaverify.verify(*step.arrays(), **step.options())
    step.q.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        delay()
        step.q.copy_(q)
        out, lse = mlaverify.verify(*step.arrays(), **step.options())
        second, second_lse = step.outputs()
        mlaverify.decode_attention_fwd_verify(*step.triton_arguments(second, second_lse))
        assert not stream.query(), "the calls waited for the stream"
    stream.synchronize()
    step.check(out, lse)
    step.check(second, second_lse)


@pytest.mark.parametrize("form", ["object", "number", "protocol"])
def test_an_explicit_stream(form):
    step = TorchStep([900, 77], "cuda", **WIDE)
    q, stream = step.q.clone(), torch.cuda.Stream()
    out, lse = step.outputs()
    step.q.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        delay()
        step.q.copy_(q)

    class Protocol:
        def __cuda_stream__(self):
            return 0, stream.cuda_stream

    given = {"object": stream, "number": stream.cuda_stream, "protocol": Protocol()}[form]
    mlaverify.verify(*step.arrays(), **step.options(), stream=given, out=out, lse=lse)
    stream.synchronize()
    step.check(out, lse)


def test_tensors_may_go_out_of_use_during_a_call():
    """Freed inputs keep their memory until the call is done with it, on the current stream and on another one."""
    for stream in (None, torch.cuda.Stream()):
        step = TorchStep([900, 77], "cuda", **WIDE)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream or torch.cuda.current_stream()):
            delay(50)
        out, lse = mlaverify.verify(*step.arrays(), **step.options(), stream=stream)
        shapes = [(t.shape, t.dtype) for t in step.arrays()]
        step.q = step.kv_cache = step.block_table = step.seq_lens = None
        gc.collect()
        taken = [torch.full(shape, -1, dtype=dtype, device="cuda") for shape, dtype in shapes for _ in range(4)]
        torch.cuda.synchronize()
        step.check(out, lse)
        del taken


@pytest.mark.parametrize("logits", ["none", "small", "large"])
def test_a_captured_graph_serves_later_lengths(logits):
    step = TorchStep([900, 77, 300], "cuda", **WIDE)
    other = TorchStep([700, 500, 12], "cuda", seed=1, **WIDE)
    splits = {"none": 4, "small": 4, "large": 400}[logits]
    attn_logits = None if logits == "none" else torch.empty((*step.q.shape[:2], splits, step.lv + 1), device="cuda")
    step.kv_cache = torch.cat([step.kv_cache, torch.zeros_like(other.kv_cache)])[: max(len(step.kv_cache), len(other.kv_cache))].clone()
    width = max(step.block_table.shape[1], other.block_table.shape[1])
    step.block_table = torch.nn.functional.pad(step.block_table, (0, width - step.block_table.shape[1]))
    out, lse = step.outputs()
    verified, verified_lse = step.outputs()
    mlaverify.warmup_decode_attention_fwd_verify(
        step.q, step.kv_cache, out, lse, step.block_table, False, [4], attn_logits, step.sm_scale, step.page_size, None
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse, splits, attn_logits))
        mlaverify.verify(*step.arrays(), **step.options(), out=verified, lse=verified_lse)
        made, made_lse = mlaverify.verify(*step.arrays(), **step.options())
    assert torch.isnan(out).all(), "captured calls ran"
    graph.replay()
    for results in ((out, lse), (verified, verified_lse), (made, made_lse)):
        step.check(*results)
    step.q.copy_(other.q)
    step.kv_cache[: len(other.kv_cache)].copy_(other.kv_cache)
    step.block_table[:, : other.block_table.shape[1]].copy_(other.block_table)
    step.seq_lens.copy_(other.seq_lens)
    for t in (out, lse, verified, verified_lse):
        t.fill_(float("nan"))
    graph.replay()
    for results in ((out, lse), (verified, verified_lse), (made, made_lse)):
        other.check(*results)


def test_capture_needs_a_workspace_where_torch_does_not_allocate():
    step = TorchStep([900, 77], "cuda", **WIDE)
    out, lse = step.outputs()
    options = {name: value for name, value in step.options().items() if name != "sm_scale"}
    workspace = torch.empty(mlaverify.workspace_size(*step.arrays(), **options, out=out, lse=lse), dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mlaverify.verify(*step.arrays(), **step.options(), out=out, lse=lse, workspace=workspace)
    graph.replay()
    step.check(out, lse)


def test_compile_with_graphs():
    def layer(q, kv_cache, block_table, seq_lens, **options):
        out, lse = mlaverify.verify(q * 1, kv_cache, block_table, seq_lens, **options)
        return out + 0, lse + 0

    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        step = TorchStep([300 + seed, 77], "cuda", seed=seed, **WIDE)
        torch.compiler.cudagraph_mark_step_begin()
        step.check(*compiled(*step.arrays(), **step.options()))


def test_compile_with_inductor():
    def layer(q, kv_cache, block_table, seq_lens, out, lse, **options):
        mlaverify.verify(q * 1, kv_cache, block_table, seq_lens, **options, out=out, lse=lse)
        return out + 0, lse + 0

    step = TorchStep([300, 77], "cuda", **WIDE)
    step.check(*torch.compile(layer, fullgraph=True)(*step.arrays(), *step.outputs(), **step.options()))


def test_wrong_devices():
    step = TorchStep([40], "cuda")
    q, kv_cache, block_table, seq_lens = step.arrays()
    for arrays, message in [
        ((q.cpu(), kv_cache, block_table, seq_lens), "device 0, must be that of q, -1"),
        ((q, kv_cache.cpu(), block_table, seq_lens), "kv_cache: got device -1, must be that of q, 0"),
        ((q, kv_cache, block_table, seq_lens.cpu()), "seq_lens: got device -1, must be that of q, 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            mlaverify.verify(*arrays, **step.options())
    out, lse = step.outputs()
    with pytest.raises(ValueError, match="workspace: got device -1, must be that of q, 0"):
        mlaverify.verify(*step.arrays(), **step.options(), workspace=torch.empty(1 << 20, dtype=torch.uint8))
    with pytest.raises(ValueError, match="attn_logits: got device -1, must be that of q, 0"):
        mlaverify.decode_attention_fwd_verify(*step.triton_arguments(out, lse, 2, torch.empty(1 << 20)))
    with pytest.raises(ValueError, match=r"seq_lens\[0\]: got -40"):
        mlaverify.verify(q, kv_cache, block_table, -seq_lens, **step.options(), checked=True)


def test_threads_on_one_stream_and_on_several():
    """The workspace of a stream is shared: the two launches of a call must not mix with another's."""
    steps = [TorchStep([900 + 64 * i, 77], "cuda", seed=i, **WIDE) for i in range(6)]
    failures = []

    def calls(step, stream):
        try:
            with torch.cuda.stream(stream):
                for _ in range(50):
                    results = [mlaverify.verify(*step.arrays(), **step.options()) for _ in range(8)]
                    stream.synchronize()
                    step.check(*results[-1])
        except Exception as error:  # noqa: BLE001 (whatever it is, the test fails)
            failures.append(error)

    torch.cuda.synchronize()
    one, many = torch.cuda.Stream(), [torch.cuda.Stream() for _ in steps]
    for streams in ([one] * len(steps), many):
        threads = [threading.Thread(target=calls, args=pair) for pair in zip(steps, streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_many_streams():
    """More streams than workspaces are kept for."""
    step = TorchStep([900, 77], "cuda", **WIDE)
    for _ in range(40):  # torch has 32
        stream = torch.cuda.Stream()
        out, lse = mlaverify.verify(*step.arrays(), **step.options(), stream=stream)
        stream.synchronize()
        step.check(out, lse)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    step = TorchStep([900, 77], "cuda", dtype="f16", heads=16, lk=576, lv=512, page=64)
    arrays = [cupy.from_dlpack(t) for t in step.arrays()]
    with pytest.raises(ValueError, match="stream: is missing, must be given for GPU arrays"):
        mlaverify.verify(*arrays, **step.options())
    for stream in (cupy.cuda.Stream(), cupy.cuda.Stream.null):
        with stream:
            out, lse = mlaverify.verify(*arrays, **step.options(), stream=stream)
            assert isinstance(out, cupy.ndarray) and out.dtype == np.float16
        stream.synchronize()
        step.check(torch.from_dlpack(out), torch.from_dlpack(lse))


def test_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"needs a JAX with CUDA: this one runs on {jax.default_backend()}")
    step = TorchStep([130, 77], "cuda", dtype="bf16")
    arrays = [jax.dlpack.from_dlpack(t) for t in step.arrays()]
    with pytest.raises(TypeError, match="out, lse: are missing, must be given where q is of jax"):
        mlaverify.verify(*arrays, **step.options(), stream=torch.cuda.current_stream())
    out, lse = step.outputs()
    mlaverify.verify(*arrays, **step.options(), stream=torch.cuda.current_stream(), out=out, lse=lse)
    step.check(out, lse)
