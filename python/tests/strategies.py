"""Hypothesis strategies: any small step."""

from hypothesis import strategies as st

from step import Step

TYPES = [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("bf16", "f8_e4m3"), ("f16", "f8_e5m2"), ("bf16", "f32")]


@st.composite
def steps(draw):
    dtype, kv_dtype = draw(st.sampled_from(TYPES))
    batch = draw(st.integers(0, 4))
    lens = draw(st.lists(st.integers(0, 150), min_size=batch, max_size=batch))
    real = draw(st.none() | st.lists(st.integers(0, 160), min_size=batch, max_size=batch))
    lv = draw(st.sampled_from([8, 64]))
    return Step(
        lens,
        real=real,
        qlen=draw(st.integers(1, 9)),
        heads=draw(st.integers(0, 5)),
        lv=lv,
        lk=lv + draw(st.sampled_from([0, 8])),
        page=draw(st.sampled_from([1, 3, 16, 64])),
        dtype=dtype,
        kv_dtype=kv_dtype,
        k_scale=draw(st.none() | st.just(0.03)),
        flat=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )
