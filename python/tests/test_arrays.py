"""What arrays are taken, and with which words the others are refused."""

import gc
import os
import signal
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import mlaverify
from step import REFUSED_WIDTHS, Step


class Producer:
    """An array of a framework that has DLPack and nothing else."""

    def __init__(self, array, versioned=True):
        self._array, self._versioned = array, versioned
        self.shape = array.shape

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self._versioned and options:
            raise TypeError("unexpected keyword argument")
        return self._array.__dlpack__(**options)


def run(step, **changes):
    """verify() with some arrays or options exchanged."""
    out, lse = step.outputs()
    options = {**step.options(), "out": out, "lse": lse}
    arrays = dict(zip(("q", "kv_cache", "block_table", "seq_lens"), step.arrays()))
    for name, value in changes.items():
        (arrays if name in arrays else options)[name] = value
    return mlaverify.verify(**arrays, **options)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned):
    step = Step([40, 9])
    out, lse = step.outputs()
    others = [Producer(a, versioned) for a in step.arrays()]
    result = mlaverify.verify(*others, **step.options(), out=Producer(out, versioned), lse=Producer(lse, versioned))
    assert isinstance(result[0], Producer)
    step.check(out, lse)


def test_dlpack_cannot_make_outputs():
    step = Step([40])
    with pytest.raises(TypeError, match="out, lse: are missing, must be given where q is of test_arrays"):
        mlaverify.verify(Producer(step.q), *step.arrays()[1:], **step.options())


def test_buffers():
    step = Step([40])
    step.check(*run(step, seq_lens=memoryview(step.seq_lens), q=memoryview(step.q)))


def test_bits_with_a_dtype():
    step = Step([40, 3], dtype="bf16", kv_dtype="f8_e4m3", k_scale=0.05)
    out, lse = step.outputs()
    q, out, kv_cache = step.q.view(np.uint16), out.view(np.uint16), step.kv_cache.view(np.uint8)
    run(step, q=q, out=out, lse=lse, kv_cache=kv_cache, dtype="bf16", kv_dtype="f8_e4m3")
    step.check(out.view(ml_dtypes.bfloat16), lse)
    run(step, kv_cache=kv_cache.view(np.int8), kv_dtype="f8_e4m3")


def test_read_only_inputs():
    step = Step([40])
    for array in step.arrays():
        array.flags.writeable = False
    step.check(*run(step))


def test_outputs_are_made_in_the_type_of_q():
    step = Step([12], dtype="f16")
    out, lse = mlaverify.verify(*step.arrays(), **step.options())
    assert (out.dtype, lse.dtype, out.shape, lse.shape) == (np.float16, np.float32, (4, 4, 64), (4, 4))


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seq_lens": lambda s: s.seq_lens.astype(np.int64)}, TypeError, "seq_lens: got int64, must be int32$"),
        ({"seq_lens": lambda s: [40]}, TypeError, "seq_lens: got <class 'list'>, must be an array with DLPack"),
        ({"seq_lens": lambda s: np.ndarray}, TypeError, "seq_lens: got <class 'type'>, must be an array with DLPack"),
        ({"block_table": lambda s: s.block_table.view(np.uint32)}, TypeError, "block_table: got uint32, must be int32$"),
        ({"k_scale": lambda s: np.ones(1)}, TypeError, "k_scale: got float64, must be float32$"),
        ({"lse": lambda s: s.outputs()[1].view(np.int32)}, TypeError, "lse: got int32, must be float32$"),
        ({"q": lambda s: np.ma.masked_array(s.q, s.q > 0)}, TypeError, "q: got an array with a mask"),
        ({"q": lambda s: s.q.astype(ml_dtypes.float8_e4m3fnuz)}, TypeError, "q: got float8_e4m3fnuz, must be f32, .* or f8_e5m2$"),
        ({"q": lambda s: s.q.view(np.uint32)}, TypeError, "q: got uint32, must be .* say what its bits are"),
        ({"q": lambda s: s.q.astype(">f4")}, TypeError, "q: got numbers in the other byte order"),
        ({"q": lambda s: s.q[:3]}, ValueError, "q: got rows 3, must be a multiple of qlen = 4"),
        ({"q": lambda s: s.q[None, None]}, ValueError, r"q: got rank 5, must be \[B\*qlen, H, Lk\]"),
        ({"q": lambda s: s.q[..., ::2]}, ValueError, r"q: got strides \[.*2\], the last dimension must be contiguous"),
        ({"kv_cache": lambda s: s.kv_cache[..., :64]}, ValueError, "kv_cache: got Lk = 64, must be that of q, 72"),
        ({"kv_cache": lambda s: s.kv_cache, "page_size": lambda s: 8}, ValueError, "kv_cache: got tokens per page 16"),
        ({"kv_cache": lambda s: np.zeros(s.kv_cache.shape, np.int32)}, ValueError, "kv_cache: got i32, must be one of f32"),
        ({"out": lambda s: read_only(s.outputs()[0])}, ValueError, "out: got a read-only array"),
        ({"out": lambda s: s.outputs()[0].astype(np.float16)}, ValueError, "out: got f16, must be that of q, f32"),
        ({"lse": lambda s: s.outputs()[1][0]}, ValueError, r"lse: got rank 1, must be \[B\*qlen, H\]"),
        ({"qlen": lambda s: 2.5}, TypeError, "qlen: got 2.5, must be an int"),
        ({"qlen": lambda s: 2**40}, ValueError, "qlen: got 1099511627776, must be a 32-bit int"),
        ({"qlen": lambda s: 0}, ValueError, "qlen: got 0, must be >= 1"),
        ({"sm_scale": lambda s: "1"}, TypeError, "sm_scale: got '1', must be a float"),
        ({"sm_scale": lambda s: 10**400}, ValueError, "sm_scale: got 1000.*, must be a 64-bit float"),
        ({"sm_scale": lambda s: -1e39}, ValueError, r"sm_scale: got -1e\+39, must be a 32-bit float"),
        ({"checked": lambda s: np.array([1, 2])}, TypeError, r"checked: got array\(\[1, 2\]\), must be a bool"),
        ({"batch_invariant": lambda s: np.array([1, 2])}, TypeError, "batch_invariant: got array.*, must be a bool"),
        ({"page_size": lambda s: 0}, ValueError, "page_size: got 0, must be >= 1"),
        ({"num_kv_splits": lambda s: -1}, ValueError, "num_kv_splits: got -1, must be >= 0"),
        ({"backend": lambda s: "gpu"}, ValueError, "backend: got 'gpu', must be one of auto, cuda, cpu, reference"),
        ({"backend": lambda s: "cuda"}, NotImplementedError, "no backend can do this call: cuda: "),
        ({"dtype": lambda s: "bf16"}, ValueError, "q: got float32, must be bf16 or integers of 16 bits"),
        ({"kv_dtype": lambda s: "f8_ds_mla"}, ValueError, "kv_cache: got float32, must be f8_ds_mla or integers of 8 bits"),
        ({"dtype": lambda s: "bfloat16"}, ValueError, "dtype: got 'bfloat16', must be None, 'f32'"),
        ({"seq_lens": lambda s: -s.seq_lens}, ValueError, r"seq_lens\[0\]: got -40, must be >= 0"),
        ({"block_table": lambda s: s.block_table + 5000}, ValueError, r"block_table\[0\]\[0\]: got"),
        ({"workspace": lambda s: np.empty(9, np.int16)}, TypeError, "workspace: got int16, must be uint8"),
        ({"workspace": lambda s: np.empty(8, np.uint8)}, ValueError, "workspace.*: got .*, must be at least|workspace: got an address"),
        ({"kv_cache": lambda s: np.zeros(s.kv_cache.shape, ml_dtypes.int4), "kv_dtype": lambda s: "f8_e4m3"}, ValueError,
         "kv_cache: got int4, must be f8_e4m3 or integers of 8 bits"),
        ({"kv_cache": lambda s: np.zeros((0, 2**32 + 16, 1, 72), np.float32), "page_size": lambda s: None}, ValueError,
         "kv_cache: got 4294967312 tokens per page"),
        ({"stream": lambda s: True}, TypeError, "stream: got True, must be a cudaStream_t as a number"),
        ({"stream": lambda s: "default"}, TypeError, "stream: got 'default', must be a cudaStream_t as a number"),
    ],
)  # fmt: skip
def test_refused(change, error, message):
    step = Step([40])
    out, lse = step.outputs()
    with pytest.raises(error, match=message):
        run(step, **{"out": out, "lse": lse, **{name: make(step) for name, make in change.items()}})
    assert np.all(np.isnan(out)) and np.all(np.isnan(lse)), "a refused call wrote something"


@pytest.mark.parametrize(("v_head_dim", "error", "message"), REFUSED_WIDTHS)
def test_refused_before_outputs_are_made(v_head_dim, error, message):
    step = Step([40])
    with pytest.raises(error, match=message):
        mlaverify.verify(*step.arrays(), **{**step.options(), "v_head_dim": v_head_dim})


def test_refused_before_outputs_are_made_though_it_has_the_attributes():
    step = Step([40])
    with pytest.raises(TypeError, match=r"v_head_dim: got array\(\[64, 64\]\), must be an int"):
        mlaverify.verify(*step.arrays(), **{**step.options(), "v_head_dim": np.array([64, 64])})
    with pytest.raises(ValueError, match=r"q: got type of shape \[\], must be an array"):
        mlaverify.verify(np.ndarray, *step.arrays()[1:], **step.options())


def test_a_width_that_is_no_multiple_of_8():
    step = Step([40])
    with pytest.raises(ValueError, match="v_head_dim: got 20, must be a multiple of 8"):
        mlaverify.verify(*step.arrays(), **{**step.options(), "v_head_dim": 20})


def test_a_width_of_another_type_of_integers():
    step = Step([40])
    step.check(*mlaverify.verify(*step.arrays(), **{**step.options(), "v_head_dim": np.int64(64)}))


def test_subclasses_of_numpy_arrays():
    class Sub(np.ndarray):
        pass

    step = Step([40])
    step.check(*mlaverify.verify(step.q.view(Sub), *step.arrays()[1:], **step.options()))


class Faulty(Producer):
    """Its methods raise, or return, what they are given."""

    def __init__(self, array, *, capsule=None, device=None):
        super().__init__(array)
        self._capsule, self._device = capsule, device

    def __dlpack_device__(self):
        return super().__dlpack_device__() if self._device is None else self._device

    def __dlpack__(self, **options):
        if isinstance(self._capsule, BaseException):
            raise self._capsule
        return self._capsule


@pytest.mark.parametrize("name", ["q", "kv_cache", "lse"])
@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), MemoryError(), TypeError("boom"), BufferError("boom")])
def test_what_an_array_raises_is_passed_on(name, error):
    step = Step([40])
    with pytest.raises(type(error)) as raised:
        run(step, **{name: Faulty(step.q, capsule=error)})
    assert raised.value is error


def test_wrong_capsules():
    step = Step([40])
    once = Faulty(step.q, capsule=step.q.__dlpack__())
    step.check(*run(step, q=once))
    for capsule in (once._capsule, 5, None, step.q, once):
        with pytest.raises(TypeError, match="q: got .*Faulty.*, must be an array with DLPack"):
            run(step, q=Faulty(step.q, capsule=capsule))
    for device in (5, (), (1,), ("a", 0), (2**70, 0), (None, 0)):
        with pytest.raises(TypeError, match="q: got .* from __dlpack_device__, must be a device type and a number"):
            run(step, q=Faulty(step.q, device=device))
    with pytest.raises(ValueError, match="stream: is missing"):
        run(step, q=Faulty(step.q, device=(2, 0)))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_what_a_number_raises_is_passed_on(error):
    class Number:
        def __index__(self):
            raise error

        __float__ = __index__

    step = Step([40])
    for name in ("qlen", "sm_scale", "page_size"):
        with pytest.raises(type(error)):
            run(step, **{name: Number()})


def test_nothing_leaks():
    step = Step([3], heads=1)

    def calls():
        for change in ({}, {"q": Producer(step.q)}, {"q": step.q.astype(">f4")}, {"lse": b"1234"}, {"qlen": "4"}, {"kv_cache": [1]}):
            try:
                run(step, **change)
            except (TypeError, ValueError):
                pass

    def count():
        gc.collect()
        return [sys.getrefcount(a) for a in (*step.arrays(), step.q.dtype)], sys.getallocatedblocks()

    for _ in range(50):
        calls()
    references, blocks = count()
    for _ in range(500):
        calls()
    after, blocks_after = count()
    assert after == references and blocks_after - blocks < 400


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork():
    """OpenMP's threads are gone in the child, which must not wait for them."""
    step = Step([300] * 8, heads=16)
    step.check(*run(step, num_threads=2))
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        result = 1
        try:
            for threads in (0, 2):
                step.check(*run(step, num_threads=threads))
            result = 0
        finally:
            os._exit(result)
    assert os.waitpid(child, 0)[1] == 0


def test_page_size_is_needed_for_a_flat_cache():
    step = Step([40], flat=True)
    with pytest.raises(ValueError, match=r"page_size: is missing, must be given where kv_cache has not 4 dimensions"):
        run(step, page_size=None)
    step = Step([40])
    step.check(*run(step, page_size=None))


def test_other_threads_run_during_a_call():
    step = Step([3000] * 4, heads=16, qlen=8)  # about a second in float64
    began = threading.Event()
    results = []

    def call():
        began.set()
        results.append(mlaverify.verify(*step.arrays(), **step.options(), backend="reference"))

    thread = threading.Thread(target=call)
    thread.start()
    began.wait()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    step.check(*results[0])
    assert turns > 20, "the GIL was held"


def test_calls_of_many_threads():
    steps = [Step([50 * i, 3], seed=i) for i in range(1, 9)]
    failures = []

    def calls(step):
        try:
            for _ in range(20):
                step.check(*mlaverify.verify(*step.arrays(), **step.options(), num_threads=1))
        except Exception as error:  # noqa: BLE001 (whatever it is, the test fails)
            failures.append(error)

    threads = [threading.Thread(target=calls, args=[step]) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
