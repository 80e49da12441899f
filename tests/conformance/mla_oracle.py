"""Independent float64 oracle for causal MLA verify, and the conformance file format.

Needs Python 3.9+ and NumPy only. It shares no code with the library: keep it that way,
so that a case file stays evidence.

A case is one safetensors file. Tensors:
  q              BF16|F16|F32                    [B*qlen, H, Lk]
  kv_cache       BF16|F16|F32|F8_E4M3|F8_E5M2    [num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk]
                 U8 (records, see below)         [num_pages, page_size, 1, 656] or [num_pages*page_size, 1, 656]
  block_table    I32                             [B, max_pages]  (entries past a request's pages are garbage on purpose)
  seq_lens       I32                             [B]
  real_seq_lens  I32, optional                   [B]
  k_scale        F32, optional                   [] or [1]   (F8_E4M3 and F8_E5M2 caches only)
  o, lse         F32, expected results           [B*qlen, H, Lv], [B*qlen, H]
String metadata: qlen, page_size, v_head_dim, sm_scale, num_kv_splits (0 = the library chooses), note; kv_cache_dtype =
fp8_ds_mla with a U8 cache, and with no other.

A record is 656 bytes for a key of 576 numbers, of which 512 are the value: 512 e4m3 numbers, 4 f32 scales (each multiplies 128
of them), 64 bf16 numbers.
"""
import json
import struct

import numpy as np

_NP = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64,
       "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "U8": np.uint8}


# ---- number formats (raw bits <-> float64) -------------------------------------------------------

def to_bf16(x):
    """float array -> uint16 bits, round to nearest even; NaN stays NaN."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    r = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(x, np.float32)), np.uint16(0x7FC0), r)


def from_bf16(b):
    return (b.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _fp8_table(exp_bits, man_bits, e4m3):
    bias = (1 << (exp_bits - 1)) - 1
    t = np.empty(256, np.float64)
    for i in range(256):
        s, e, m = i >> 7, (i >> man_bits) & ((1 << exp_bits) - 1), i & ((1 << man_bits) - 1)
        top = (1 << exp_bits) - 1
        if e4m3 and e == top and m == (1 << man_bits) - 1:
            v = np.nan                                   # E4M3FN: one NaN pattern, no infinities
        elif not e4m3 and e == top:
            v = np.inf if m == 0 else np.nan
        elif e == 0:
            v = m * 2.0 ** (1 - bias - man_bits)
        else:
            v = (1 + m / (1 << man_bits)) * 2.0 ** (e - bias)
        t[i] = -v if s else v
    return t


E4M3 = _fp8_table(4, 3, True)
E5M2 = _fp8_table(5, 2, False)


def to_fp8(x, table):
    """Nearest representable value, ties to the even code, saturating; returns uint8 bits."""
    pos = np.where(np.isfinite(table[:128]))[0]
    vals = table[pos]
    a = np.abs(np.asarray(x, np.float64))
    hi = np.clip(np.searchsorted(vals, a), 0, len(vals) - 1)
    lo = np.maximum(hi - 1, 0)
    dl, dh = a - vals[lo], vals[hi] - a
    pick = np.where((dl < dh) | ((dl == dh) & (lo % 2 == 0)), lo, hi)
    pick = np.where(a >= vals[-1], len(vals) - 1, pick)
    return (pos[pick] | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def decode(name, raw):
    if name == "BF16":
        return from_bf16(raw)
    if name == "F8_E4M3":
        return E4M3[raw]
    if name == "F8_E5M2":
        return E5M2[raw]
    return raw.astype(np.float64)


def encode(name, x):
    if name == "BF16":
        return to_bf16(x)
    if name == "F8_E4M3":
        return to_fp8(x, E4M3)
    if name == "F8_E5M2":
        return to_fp8(x, E5M2)
    return np.asarray(x).astype(_NP[name])


# ---- records --------------------------------------------------------------------------------------

def record_fields(raw):
    """Writable views of records [..., 656] uint8: e4m3 codes [..., 4, 128], scales [..., 4] f32, last numbers [..., 64] (bf16 bits)."""
    return (raw[..., :512].reshape(raw.shape[:-1] + (4, 128)), raw[..., 512:528].view(np.float32), raw[..., 528:].view(np.uint16))


def from_records(raw):
    codes, scales, last = record_fields(np.ascontiguousarray(raw))
    with np.errstate(all="ignore"):                      # free slots hold NaN
        scaled = E4M3[codes].astype(np.float32) * scales[..., None]
    return np.concatenate([scaled.reshape(raw.shape[:-1] + (512,)).astype(np.float64), from_bf16(last)], axis=-1)


def to_records(x):
    """[..., 576] numbers; a group's scale is its largest number / 448."""
    groups = x[..., :512].reshape(x.shape[:-1] + (4, 128))
    raw = np.zeros(x.shape[:-1] + (656,), np.uint8)
    codes, scales, last = record_fields(raw)
    scales[...] = np.maximum(np.abs(groups).max(axis=-1) / 448, 1e-30)
    codes[...] = to_fp8(groups / scales[..., None].astype(np.float64), E4M3)
    last[...] = to_bf16(x[..., 512:])
    return raw


# ---- safetensors ---------------------------------------------------------------------------------

def save(path, tensors, meta):
    """tensors: name -> (dtype name, raw numpy array)."""
    head, blobs, at = {"__metadata__": {k: str(v) for k, v in meta.items()}}, [], 0
    for name, (dt, arr) in tensors.items():
        b = np.ascontiguousarray(arr).tobytes()
        head[name] = {"dtype": dt, "shape": list(np.shape(arr)), "data_offsets": [at, at + len(b)]}
        blobs.append(b)
        at += len(b)
    h = json.dumps(head).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h + b"".join(blobs))


def load(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    meta = head.pop("__metadata__", {})
    out = {}
    for name, t in head.items():
        a, b = t["data_offsets"]
        out[name] = (t["dtype"], np.frombuffer(data[a:b], _NP[t["dtype"]]).reshape(t["shape"]))
    return out, meta


# ---- the operation -------------------------------------------------------------------------------

def row_limit(seq_len, real_len, qlen, t):
    """Number of visible keys of verify token t: max(min(L - qlen + 1 + t, L_real), 0)."""
    return max(min(seq_len - qlen + 1 + t, real_len), 0)


def mla_verify(q, kv, block_table, seq_lens, real_seq_lens, qlen, page_size, v_head_dim, sm_scale, k_scale=1.0):
    """float64 in, float64 out: o [B*qlen, H, Lv], lse [B*qlen, H] (natural log; -inf and zeros for a row with no key)."""
    lk = q.shape[-1]
    slots = kv.reshape(-1, lk)
    rows, heads = q.shape[0], q.shape[1]
    o = np.zeros((rows, heads, v_head_dim))
    lse = np.full((rows, heads), -np.inf)
    for b in range(len(seq_lens)):
        for t in range(qlen):
            n = row_limit(int(seq_lens[b]), int(real_seq_lens[b]), qlen, t)
            if n == 0:
                continue
            pos = np.arange(n)
            where = block_table[b, pos // page_size].astype(np.int64) * page_size + pos % page_size
            k = slots[where] * k_scale
            s = (q[b * qlen + t] @ k.T) * sm_scale
            m = s.max(axis=1, keepdims=True)
            p = np.exp(s - m)
            z = p.sum(axis=1, keepdims=True)
            o[b * qlen + t] = (p / z) @ k[:, :v_head_dim]
            lse[b * qlen + t] = (m + np.log(z))[:, 0]
    return o, lse


def expected_for(tensors, meta):
    f = {n: (decode(d, a) if d in ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2") else a) for n, (d, a) in tensors.items()}
    if meta.get("kv_cache_dtype") == "fp8_ds_mla":
        f["kv_cache"] = from_records(f["kv_cache"])
    scale = float(np.ravel(f["k_scale"])[0]) if "k_scale" in f and tensors["kv_cache"][0].startswith("F8") else 1.0
    return mla_verify(f["q"], f["kv_cache"], f["block_table"], f["seq_lens"], f.get("real_seq_lens", f["seq_lens"]),
                      int(meta["qlen"]), int(meta["page_size"]), int(meta["v_head_dim"]), float(meta["sm_scale"]), scale)


TOLERANCE = {"BF16": (4e-3, 2e-3), "F16": (4e-3, 2e-3), "F32": (2e-5, 1e-5)}      # by type of q: o per row (relative norm), lse per row


def compare(o, lse, want_o, want_lse, q_dtype="BF16"):
    """Returns None when equal within tolerance (docs/tolerance.md), else a sentence."""
    rel, lse_abs = TOLERANCE[q_dtype]
    if np.shape(o) != np.shape(want_o) or np.shape(lse) != np.shape(want_lse):
        return f"shapes {np.shape(o)} {np.shape(lse)}, expected {np.shape(want_o)} {np.shape(want_lse)}"
    empty = np.isneginf(want_lse)
    if not np.array_equal(np.isneginf(lse), empty):
        return "-inf LSE in the wrong rows"
    if np.any(o[empty] != 0):
        return "a row with no key is not zero"
    if not np.all(np.isfinite(o)) or not np.all(np.isfinite(lse[~empty])):
        return "non-finite output"
    e = np.abs(lse[~empty] - want_lse[~empty]) / np.maximum(1, np.abs(want_lse[~empty]))
    if e.size and e.max() > lse_abs:
        return f"lse off by {e.max():.3g} (relative beyond 1)"
    num = np.linalg.norm(o - want_o, axis=-1)
    den = np.linalg.norm(want_o, axis=-1)
    bad = num > rel * den + 1e-7
    if np.any(bad):
        i = np.unravel_index(np.argmax(num / np.maximum(den, 1e-30)), num.shape)
        return f"row {i[0]} head {i[1]}: relative error {num[i] / max(den[i], 1e-30):.3g} > {rel}"
    return None
