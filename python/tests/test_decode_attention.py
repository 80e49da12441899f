"""The functions with the names of vLLM's, without torch: signatures, planning, errors."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlaverify
from mlaverify import decode_attention
from step import Step
from strategies import steps

PLANNING = Path(__file__).resolve().parents[2] / "tests" / "conformance" / "planning.json"


def call(step, out, lse, **changes):
    arguments = {
        "q": step.q, "k_buffer": step.kv_cache, "v_buffer": step.kv_cache[..., : step.lv], "o": out, "lse": lse,
        "req_to_token": step.block_table, "seq_lens": step.seq_lens, "real_seq_lens": step.real_seq_lens, "qlen": step.qlen,
        "attn_logits": None, "num_kv_splits": 1, "sm_scale": step.sm_scale, "page_size": step.page_size, "k_scale": step.k_scale,
    }  # fmt: skip
    mlaverify.decode_attention_fwd_verify(*{**arguments, **changes}.values())


def test_signatures():
    def parameters(function):
        return [
            str(p).split(":")[0] + ("" if p.default is p.empty else f"={p.default}")
            for p in inspect.signature(function).parameters.values()
        ]

    assert parameters(mlaverify.decode_attention_fwd_verify) == [
        "q", "k_buffer", "v_buffer", "o", "lse", "req_to_token", "seq_lens", "real_seq_lens", "qlen", "attn_logits", "num_kv_splits",
        "sm_scale", "page_size", "k_scale=None",
    ]  # fmt: skip
    assert parameters(mlaverify.verify_num_kv_splits) == [
        "max_seq_len", "batch", "qlen", "num_heads", "sm_count", "block_h", "occupancy=1.0", "min_work_per_split=64", "max_splits=8",
    ]  # fmt: skip
    assert parameters(mlaverify.select_verify_config) == ["batch", "qlen", "num_heads"]
    assert parameters(mlaverify.warmup_decode_attention_fwd_verify)[:10] == [
        "q", "k_buffer", "o", "lse", "req_to_token", "has_real", "qlens", "attn_logits", "sm_scale", "page_size",
    ]  # fmt: skip


@pytest.mark.parametrize("splits", [0, 1, 5])
def test_it_computes(splits):
    step = Step([130, 77, 0], real=[128, 90, 3], dtype="bf16", kv_dtype="f8_e4m3", k_scale=0.05)
    out, lse = step.outputs()
    logits = np.empty((*step.q.shape[:2], max(splits, 1), step.lv + 1), np.float32)
    call(step, out, lse, num_kv_splits=splits, attn_logits=logits)
    step.check(out, lse)


@given(steps(), st.integers(0, 5), st.integers(0, 3))
def test_any_step(step, splits, logits_splits):
    """With too little memory in attn_logits, enough, or none."""
    out, lse = step.outputs()
    logits = np.empty((*step.q.shape[:2], logits_splits * 100, step.lv + 1), np.float32) if logits_splits else None
    call(step, out, lse, num_kv_splits=splits, attn_logits=logits)
    step.check(out, lse)


def test_errors_name_its_own_arguments():
    step = Step([40])
    out, lse = step.outputs()
    for change, message in [
        ({"k_buffer": step.kv_cache[..., :64]}, "k_buffer: got Lk = 64"),
        ({"o": out.astype(np.float16)}, "o: got f16, must be that of q"),
        ({"req_to_token": step.block_table[0]}, r"req_to_token: got rank 1"),
        ({"v_buffer": step.kv_cache[..., :60]}, "v_buffer: got 60, must be a multiple of 8"),
        ({"attn_logits": np.empty(8, np.int32)}, "attn_logits: got int32, must be float32"),
        ({"num_kv_splits": -1}, "num_kv_splits: got -1, must be >= 0"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            call(step, out, lse, **change)
    assert np.all(np.isnan(out)) and np.all(np.isnan(lse))


def test_warmup_leaves_everything_as_it_is():
    step = Step([40, 50])
    out, lse = step.outputs()
    before = step.kv_cache.copy()
    mlaverify.warmup_decode_attention_fwd_verify(
        step.q, step.kv_cache, out, lse, step.block_table, True, [1, 2, 4], None, step.sm_scale, step.page_size, None
    )
    assert np.all(np.isnan(out)) and np.all(np.isnan(lse)) and np.array_equal(before, step.kv_cache, equal_nan=True)
    with pytest.raises(ValueError, match=r"qlens\[1\]: got 0, must be >= 1"):
        mlaverify.warmup_decode_attention_fwd_verify(
            step.q, step.kv_cache, out, lse, step.block_table, False, [1, 0], None, step.sm_scale, step.page_size, None
        )
    with pytest.raises(TypeError, match=r"has_real: got array\(\[1, 2\]\), must be a bool"):
        mlaverify.warmup_decode_attention_fwd_verify(
            step.q, step.kv_cache, out, lse, step.block_table, np.array([1, 2]), [1], None, step.sm_scale, step.page_size, None
        )


def test_planning():
    cases = json.loads(PLANNING.read_text())
    assert len(cases) > 700
    for case in cases:
        expected = case.pop("expect")
        assert mlaverify.verify_num_kv_splits(**case) == expected, case
    with pytest.raises(ValueError, match="block_h: got 0, must be >= 1"):
        mlaverify.verify_num_kv_splits(4096, 1, 4, 16, 132, 0)
    assert mlaverify.verify_row_blocks(4, 16, 48) == 2


def test_select_verify_config():
    config = mlaverify.select_verify_config(8, 4, 16)
    assert {"BLOCK_H", "BLOCK_N", "SPLIT_ALIGN", "MIN_SPLIT_LEN", "QSPLIT", "num_warps", "num_stages", "S2_BLOCK_S", "s2_num_warps"} <= set(
        config
    )
    assert all(isinstance(value, int) for value in config.values()) and config["BLOCK_H"] > 0
    assert mlaverify.VERIFY_DEFAULT_CONFIG.keys() == config.keys()
    with pytest.raises(ValueError, match="qlen: got 0, must be >= 1"):
        mlaverify.select_verify_config(8, 0, 16)


def test_replacements_are_the_public_functions():
    for name, value in decode_attention.replacements().items():
        assert getattr(decode_attention, name) is value


def test_values_are_the_beginning_of_the_keys():
    step = Step([40])
    out, lse = step.outputs()
    for v_buffer, message in [
        (step.kv_cache[..., : step.lv].copy(), r"v_buffer: got other memory, must be k_buffer\[..., :Lv\]"),
        (step.kv_cache[..., 8:], "v_buffer: got other memory"),
        (np.zeros((), np.float32), "v_buffer: got rank 0"),
        (None, "v_buffer: is missing, must be k_buffer"),
        (np.broadcast_to(np.zeros(1, np.float32), (1, 1, 1, 2**32 + step.lv)), "v_buffer: got width 4294967360"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(step, out, lse, v_buffer=v_buffer)
    assert np.all(np.isnan(out)) and np.all(np.isnan(lse))


def test_what_an_array_raises_keeps_its_type():
    class Array:
        def __dlpack__(self, **options):
            b"\xff".decode()

    step = Step([40])
    with pytest.raises(UnicodeDecodeError):
        call(step, *step.outputs(), k_buffer=Array())


@pytest.mark.parametrize(
    ("qlens", "error", "message"),
    [
        ([1, 2**40], ValueError, "qlens: got 1099511627776, must be a 32-bit int"),
        (["4"], TypeError, "qlens: got '4', must be an int"),
        ([2.7], TypeError, "qlens: got 2.7, must be an int"),
        (None, TypeError, "qlens: got None, must be ints"),
        ([0], ValueError, r"qlens\[0\]: got 0, must be >= 1"),
    ],
)
def test_warmup_refuses(qlens, error, message):
    step = Step([40])
    out, lse = step.outputs()
    with pytest.raises(error, match=message):
        mlaverify.warmup_decode_attention_fwd_verify(
            step.q, step.kv_cache, out, lse, step.block_table, False, qlens, None, step.sm_scale, step.page_size
        )


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (mlaverify.verify_num_kv_splits, (2**70, 4, 4, 16, 132, 64), ValueError, "max_seq_len: got .*, must be a 64-bit int"),
        (mlaverify.verify_num_kv_splits, (100, 1.5, 4, 16, 132, 64), TypeError, "batch: got 1.5, must be an int"),
        (mlaverify.verify_num_kv_splits, (100, 4, 4, 16, 132, None), TypeError, "block_h: got None, must be an int"),
        (mlaverify.verify_row_blocks, (4, 16, 0), ValueError, "block_h: got 0, must be >= 1"),
        (mlaverify.verify_row_blocks, (-1, 16, 64), ValueError, "qlen: got -1, must be >= 0"),
        (mlaverify.verify_row_blocks, (4, 1.5, 64), TypeError, "num_heads: got 1.5, must be an int"),
        (mlaverify.verify_row_blocks, (4, 16, np.array([1, 2])), TypeError, r"block_h: got array\(\[1, 2\]\), must be an int"),
        (mlaverify.select_verify_config, (4, 2**40, 16), ValueError, "qlen: got .*, must be a 32-bit int"),
    ],
)
def test_planning_refuses(function, arguments, error, message):
    with pytest.raises(error, match=message):
        function(*arguments)
