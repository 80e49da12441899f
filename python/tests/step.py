"""Random steps as NumPy arrays, poisoned wherever nothing may be read, and their results from the float64 oracle."""

import ml_dtypes
import mla_oracle
import numpy as np

GARBAGE = 2147480000  # a block table entry that must never be followed
NUMPY_TYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
# v_head_dim where Lk is 72: what is refused before outputs of that width are made, and with which words.
REFUSED_WIDTHS = [
    (-8, ValueError, r"v_head_dim: got -8, must be in 8 \.\.\. 72"),
    (80, ValueError, r"v_head_dim: got 80, must be in 8 \.\.\. 72"),
    (2**40, ValueError, r"v_head_dim: got 1099511627776, must be in 8 \.\.\. 72"),
    (64.5, TypeError, "v_head_dim: got 64.5, must be an int"),
    ("64", TypeError, "v_head_dim: got '64', must be an int"),
    (None, TypeError, "v_head_dim: got None, must be an int"),
]


class Step:
    """One step: q, kv_cache, block_table, seq_lens and so on, and the expected out and lse in float64."""

    def __init__(
        self, lens, *, qlen=4, heads=4, lk=72, lv=64, page=16, real=None, dtype="f32", kv_dtype=None, k_scale=None, flat=False, seed=0
    ):
        rng = np.random.default_rng(seed)
        self.qlen, self.heads, self.lv, self.page_size, self.dtype = qlen, heads, lv, page, dtype
        self.kv_dtype = kv_dtype or dtype
        self.sm_scale = float(1 / np.sqrt(lk))
        pages = [-(-n // page) for n in lens]
        total = sum(pages) + 2
        order = rng.permutation(total)
        self.block_table = np.full((len(lens), max([*pages, 1]) + 1), GARBAGE, np.int32)
        cache = rng.standard_normal((total, page, 1, lk)) / 2
        if self.kv_dtype.startswith("f8"):
            cache = np.clip(cache * 16, -400, 400)
        seen = np.zeros((total, page), bool)
        at = 0
        for b, n in enumerate(lens):
            mine = order[at : at + pages[b]]
            at += pages[b]
            self.block_table[b, : pages[b]] = mine
            for i in range(n if real is None else min(n, real[b])):
                seen[mine[i // page], i % page] = True
        self.kv_cache = cache.astype(NUMPY_TYPES[self.kv_dtype])
        clean = np.where(seen[..., None, None], self.kv_cache.astype(np.float64), 0)
        self.kv_cache[~seen] = np.nan
        self.q = (rng.standard_normal((len(lens) * qlen, heads, lk))).astype(NUMPY_TYPES[dtype])
        self.seq_lens = np.array(lens, np.int32)
        self.real_seq_lens = None if real is None else np.array(real, np.int32)
        self.k_scale = None if k_scale is None else np.array([k_scale], np.float32)
        scale = k_scale if k_scale is not None and self.kv_dtype.startswith("f8") else 1.0
        self.expected = mla_oracle.mla_verify(
            self.q.astype(np.float64), clean, self.block_table, lens, lens if real is None else real, qlen, page, lv, self.sm_scale, scale
        )
        if flat:
            self.kv_cache = self.kv_cache.reshape(total * page, 1, lk)

    def outputs(self):
        """out and lse full of NaN."""
        rows, heads, _ = self.q.shape
        return np.full((rows, heads, self.lv), np.nan, self.q.dtype), np.full((rows, heads), np.nan, np.float32)

    def arrays(self):
        """The positional arguments of mlaverify.verify."""
        return self.q, self.kv_cache, self.block_table, self.seq_lens

    def options(self):
        """Its options."""
        return {
            "qlen": self.qlen,
            "v_head_dim": self.lv,
            "sm_scale": self.sm_scale,
            "page_size": self.page_size,
            "real_seq_lens": self.real_seq_lens,
            "k_scale": self.k_scale,
        }

    def check(self, out, lse):
        """Fails where out and lse (anything that NumPy converts) are not what the oracle says, within the tolerance policy."""
        name = {"f32": "F32", "f16": "F16", "bf16": "BF16"}[self.dtype]
        wrong = mla_oracle.compare(np.asarray(out).astype(np.float64), np.asarray(lse).astype(np.float64), *self.expected, name)
        assert wrong is None, wrong
