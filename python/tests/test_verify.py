"""verify() on NumPy arrays against the float64 oracle."""

import mla_oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlaverify
from step import Step
from strategies import TYPES, steps


@pytest.mark.parametrize(("dtype", "kv_dtype"), TYPES)
def test_types(dtype, kv_dtype):
    step = Step([40, 7, 100, 0], dtype=dtype, kv_dtype=kv_dtype, k_scale=0.0625 if kv_dtype.startswith("f8") else None)
    out, lse = mlaverify.verify(*step.arrays(), **step.options())
    assert out.dtype == step.q.dtype and lse.dtype == np.float32
    step.check(out, lse)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("flat", [False, True])
def test_records(dtype, flat):
    step = Step([40, 7, 100, 0], lk=576, lv=512, dtype=dtype, kv_dtype="f32", flat=flat)
    unseen = np.isnan(step.kv_cache).any(axis=-1)
    records = mla_oracle.to_records(np.where(unseen[..., None], 0, step.kv_cache))
    step.kv_cache = np.where(unseen[..., None], np.float32(np.nan), mla_oracle.from_records(records).astype(np.float32))
    want = mlaverify.verify(*step.arrays(), **step.options(), backend="reference")  # of the numbers that the records hold
    records[unseen] = 0xFF
    step.kv_cache = records
    out, lse = mlaverify.verify(*step.arrays(), **step.options(), kv_dtype="f8_ds_mla")
    step.expected = tuple(np.asarray(x).astype(np.float64) for x in want)
    step.check(out, lse)


@given(steps(), st.integers(0, 4), st.sampled_from(["auto", "cpu", "reference"]))
def test_any_step(step, num_kv_splits, backend):
    out, lse = step.outputs()
    result = mlaverify.verify(*step.arrays(), **step.options(), num_kv_splits=num_kv_splits, backend=backend, out=out, lse=lse)
    assert result[0] is out and result[1] is lse
    step.check(out, lse)


@given(steps(), st.data())
def test_strided_arrays_are_taken_as_they_are(step, data):
    """Views of larger arrays: results land in the view, and nothing beside it changes."""
    strided = {}
    for name in ("q", "kv_cache", "block_table", "seq_lens"):
        array = getattr(step, name)
        outer = [slice(None)] * array.ndim
        shape = list(array.shape)
        if array.ndim > 1:  # the last dimension must stay contiguous
            shape[0] = shape[0] * 2 + 3
            outer[0] = slice(2, 2 + 2 * array.shape[0], 2)
            shape[-1] += 8
            outer[-1] = slice(0, array.shape[-1])
        whole = np.zeros(shape, array.dtype)
        whole[tuple(outer)] = array
        strided[name] = whole[tuple(outer)]
    rows, heads, _ = step.q.shape
    around = np.full((rows, heads + 2, step.lv + 8), 7, step.q.dtype)
    out = around[:, 1 : heads + 1, : step.lv]
    around_lse = np.full((heads + 1, rows + 1), 7, np.float32)
    lse = around_lse.T[:rows, :heads]
    threads = data.draw(st.integers(1, 3))
    mlaverify.verify(*strided.values(), **step.options(), out=out, lse=lse, num_threads=threads)
    step.check(out, lse)
    around[:, 1 : heads + 1, : step.lv] = 7
    around_lse[:heads, :rows] = 7
    assert np.all(around == 7) and np.all(around_lse == 7)


def test_bits_do_not_depend_on_threads_or_splits():
    step = Step([700, 1200], dtype="bf16")
    results = [
        mlaverify.verify(*step.arrays(), **step.options(), num_threads=threads, num_kv_splits=splits, batch_invariant=True)
        for threads, splits in [(1, 0), (2, 0), (2, 3)]
    ]
    for out, lse in results[1:]:
        assert np.array_equal(out.view(np.uint16), results[0][0].view(np.uint16)) and np.array_equal(lse, results[0][1])


def test_workspace():
    step = Step([300, 20])
    out, lse = step.outputs()
    needed = mlaverify.workspace_size(*step.arrays(), **_without_scale(step), out=out, lse=lse, num_threads=2)
    memory = np.empty(needed + 255, np.uint8)
    start = -memory.ctypes.data % 256
    mlaverify.verify(*step.arrays(), **step.options(), out=out, lse=lse, num_threads=2, workspace=memory[start : start + needed])
    step.check(out, lse)
    with pytest.raises(ValueError, match=f"workspace_bytes: got {needed - 256}, must be at least {needed}"):
        mlaverify.verify(*step.arrays(), **step.options(), out=out, lse=lse, num_threads=2, workspace=memory[start : start + needed - 256])


def _without_scale(step):
    return {name: value for name, value in step.options().items() if name != "sm_scale"}
