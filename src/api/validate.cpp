#include "api/validate.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "rules/number.h"
#include "rules/row.h"

namespace mlaverify {
namespace {

using Args = mlaverify_verify_args;
using Tensor = mlaverify_tensor;

constexpr uint32_t kKnownFlags = MLAVERIFY_FLAG_BATCH_INVARIANT | MLAVERIFY_FLAG_CHECKED;

// ---- Words ----------------------------------------------------------------------------------------------------------

std::string got(int64_t value, const std::string &must, const std::string &what = "") {
  return "got " + what + std::to_string(value) + ", must be " + must;
}

std::string dtype_name(mlaverify_dtype t) {
  switch (t) {
    case MLAVERIFY_F32: return "f32";
    case MLAVERIFY_F16: return "f16";
    case MLAVERIFY_BF16: return "bf16";
    case MLAVERIFY_F8_E4M3: return "f8_e4m3";
    case MLAVERIFY_F8_E5M2: return "f8_e5m2";
    case MLAVERIFY_I32: return "i32";
    case MLAVERIFY_F8_DS_MLA: return "f8_ds_mla";
    default: return "dtype " + std::to_string(t);
  }
}

std::string dims(const int64_t *values, int32_t n) {
  std::string s = "[";
  for (int32_t i = 0; i < n; ++i) s += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return s + "]";
}

std::string shape_text(const Tensor &t) { return dims(t.shape, t.ndim); }

// ---- One tensor -----------------------------------------------------------------------------------------------------

bool absent(const Tensor &t) { return t.data == nullptr && t.ndim == 0; }

int64_t num_elements(const Tensor &t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}

constexpr uint32_t bit(mlaverify_dtype t) { return 1u << t; }
constexpr uint32_t kFloats = bit(MLAVERIFY_F32) | bit(MLAVERIFY_F16) | bit(MLAVERIFY_BF16);
constexpr uint32_t kCacheTypes = kFloats | bit(MLAVERIFY_F8_E4M3) | bit(MLAVERIFY_F8_E5M2) | bit(MLAVERIFY_F8_DS_MLA);

struct TensorRule {
  const char *name;
  Tensor Args::*tensor;
  const char *form;  // what it should look like, for messages
  uint32_t dtypes;
  int32_t min_ndim, max_ndim;
  bool optional;
  bool last_contiguous;
  bool output;
};

constexpr TensorRule kTensors[] = {
    {"q", &Args::q, "[B*qlen, H, Lk]", kFloats, 3, 3, false, true, false},
    {"kv_cache", &Args::kv_cache, "[num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk]", kCacheTypes, 3, 4, false,
     true, false},
    {"out", &Args::out, "[B*qlen, H, Lv]", kFloats, 3, 3, false, true, true},
    {"lse", &Args::lse, "[B*qlen, H]", bit(MLAVERIFY_F32), 2, 2, false, false, true},
    {"block_table", &Args::block_table, "[B, max_pages]", bit(MLAVERIFY_I32), 2, 2, false, true, false},
    {"seq_lens", &Args::seq_lens, "[B]", bit(MLAVERIFY_I32), 1, 1, false, true, false},
    {"real_seq_lens", &Args::real_seq_lens, "[B]", bit(MLAVERIFY_I32), 1, 1, true, true, false},
    {"k_scale", &Args::k_scale, "[] or [1]", bit(MLAVERIFY_F32), 0, 1, true, true, false},
};

std::string allowed_dtypes(uint32_t set) {
  std::string s;
  for (mlaverify_dtype t = 0; t < 32; ++t) {
    if (set & bit(t)) s += (s.empty() ? "" : ", ") + dtype_name(t);
  }
  return s;
}

// |stride| * (shape - 1) summed: elements between the lowest and the highest address. Negative: does not fit in 64-bit bytes.
int64_t reach(const Tensor &t) {
  constexpr int64_t limit = std::numeric_limits<int64_t>::max() / 8;
  int64_t sum = 0;
  for (int32_t i = 0; i < t.ndim; ++i) {
    int64_t step = 0;
    if (t.strides[i] == std::numeric_limits<int64_t>::min()) return -1;
    const int64_t stride = t.strides[i] < 0 ? -t.strides[i] : t.strides[i];
    if (__builtin_mul_overflow(stride, std::max<int64_t>(t.shape[i] - 1, 0), &step) ||
        __builtin_add_overflow(sum, step, &sum) || sum > limit)
      return -1;
  }
  return sum;
}

// Sufficient for elements to be apart: ordered by stride, each dimension steps over all that the smaller ones reach.
bool elements_apart(const Tensor &t) {
  int64_t covered = 0;  // elements reached by the dimensions taken so far, less one
  bool taken[4] = {};
  for (int32_t n = 0; n < t.ndim; ++n) {
    int32_t next = -1;
    for (int32_t i = 0; i < t.ndim; ++i) {
      if (!taken[i] && (next < 0 || std::abs(t.strides[i]) < std::abs(t.strides[next]))) next = i;
    }
    taken[next] = true;
    if (t.shape[next] <= 1) continue;
    const int64_t stride = std::abs(t.strides[next]);
    if (stride <= covered) return false;
    covered += stride * (t.shape[next] - 1);
  }
  return true;
}

std::string check_tensor(const TensorRule &rule, const Tensor &t) {
  if (absent(t) && rule.optional) return "";
  if (t.ndim < rule.min_ndim || t.ndim > rule.max_ndim) {
    return absent(t) ? std::string("is missing, must be ") + rule.form
                     : "got rank " + std::to_string(t.ndim) + ", must be " + rule.form;
  }
  if (t.dtype < 0 || t.dtype >= 32 || !(rule.dtypes & bit(t.dtype))) {
    return "got " + dtype_name(t.dtype) + ", must be one of " + allowed_dtypes(rule.dtypes);
  }
  if (t.reserved != 0) return got(t.reserved, "0", "reserved field ");
  if (t.device < MLAVERIFY_HOST) return got(t.device, "-1 (host) or a CUDA device", "device ");
  int64_t n = 1;
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] < 0) return "got shape " + shape_text(t) + ", sizes must be >= 0";
    if (__builtin_mul_overflow(n, t.shape[i], &n))
      return "got shape " + shape_text(t) + ", which has more elements than 64 bits count";
  }
  if (reach(t) < 0) return "got strides " + dims(t.strides, t.ndim) + ", which reach beyond 64-bit addresses";
  const int32_t last = t.ndim - 1;
  if (rule.last_contiguous && n > 0 && t.ndim > 0 && t.shape[last] > 1 && t.strides[last] != 1) {
    return "got strides " + dims(t.strides, t.ndim) + ", the last dimension must be contiguous (stride 1)";
  }
  if (rule.output && n > 0 && !elements_apart(t)) {
    return "got shape " + shape_text(t) + " with strides " + dims(t.strides, t.ndim) +
           ", elements of an output must not overlap";
  }
  return "";
}

// ---- The call as a whole --------------------------------------------------------------------------------------------

// In an order in which each row may rely on those before it. `check` returns what is wrong, or "".
struct CallRule {
  const char *argument;
  std::string (*check)(const Args &);
};

int64_t kv_slots(const Args &a) {
  return a.kv_cache.ndim == 4 ? a.kv_cache.shape[0] * a.kv_cache.shape[1] : a.kv_cache.shape[0];
}
int64_t latent_heads(const Args &a) { return a.kv_cache.shape[a.kv_cache.ndim - 2]; }
int64_t kv_width(const Args &a) { return a.kv_cache.shape[a.kv_cache.ndim - 1]; }
int64_t batch(const Args &a) { return a.q.shape[0] / a.qlen; }
bool has_records(const Args &a) { return rules::is_record(static_cast<DType>(a.kv_cache.dtype)); }

std::string want_shape(const Tensor &t, std::initializer_list<int64_t> want, const char *meaning) {
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] != want.begin()[i]) {
      return "got shape " + shape_text(t) + ", must be " + dims(want.begin(), static_cast<int32_t>(want.size())) + " (" +
             meaning + ")";
    }
  }
  return "";
}

std::string at_least(int64_t value, int64_t least) { return value >= least ? "" : got(value, ">= " + std::to_string(least)); }

std::string head_dim(int64_t value, const std::string &what) {
  if (value % 8 == 0 && value >= 8 && value <= MLAVERIFY_MAX_HEAD_DIM) return "";
  return got(value, "a multiple of 8 in 8 ... " + std::to_string(MLAVERIFY_MAX_HEAD_DIM), what);
}

constexpr CallRule kScalars[] = {
    {"backend",
     [](const Args &a) {
       return a.backend >= 0 && a.backend <= MLAVERIFY_BACKEND_CUDA ? ""
                                                                    : got(a.backend, "a MLAVERIFY_BACKEND_* number, 0 ... 3");
     }},
    {"flags",
     [](const Args &a) { return (a.flags & ~kKnownFlags) == 0 ? "" : got(a.flags, "a combination of MLAVERIFY_FLAG_*"); }},
    {"qlen", [](const Args &a) { return at_least(a.qlen, 1); }},
    {"page_size", [](const Args &a) { return at_least(a.page_size, 1); }},
    {"num_kv_splits", [](const Args &a) { return at_least(a.num_kv_splits, 0); }},
    {"num_threads",
     [](const Args &a) {
       const int32_t least = a.parallel_for != nullptr ? 1 : 0;
       return a.num_threads >= least && a.num_threads <= MLAVERIFY_MAX_THREADS
                  ? ""
                  : got(a.num_threads, "in " + std::to_string(least) + " ... " + std::to_string(MLAVERIFY_MAX_THREADS) +
                                           (least == 1 ? " where parallel_for is given" : ""));
     }},
    {"v_head_dim", [](const Args &a) { return head_dim(a.v_head_dim, ""); }},
};

constexpr CallRule kRelations[] = {
    {"q",
     [](const Args &a) {
       return a.q.shape[0] % a.qlen == 0 ? "" : got(a.q.shape[0], "a multiple of qlen = " + std::to_string(a.qlen), "rows ");
     }},
    {"q",
     [](const Args &a) {
       constexpr int64_t limit = std::numeric_limits<int32_t>::max();
       return a.q.shape[0] <= limit && a.q.shape[1] <= limit
                  ? ""
                  : "got shape " + shape_text(a.q) + ", rows and heads must be below 2^31";
     }},
    {"q", [](const Args &a) { return head_dim(a.q.shape[2], "Lk = "); }},
    {"v_head_dim",
     [](const Args &a) {
       return a.v_head_dim <= a.q.shape[2] ? "" : got(a.v_head_dim, "<= Lk = " + std::to_string(a.q.shape[2]));
     }},
    {"kv_cache",
     [](const Args &a) {
       return latent_heads(a) == 1 ? "" : "got shape " + shape_text(a.kv_cache) + ", must have 1 latent head (last but one)";
     }},
    {"kv_cache",
     [](const Args &a) {
       return has_records(a) || kv_width(a) == a.q.shape[2]
                  ? ""
                  : got(kv_width(a), "that of q, " + std::to_string(a.q.shape[2]), "Lk = ");
     }},
    {"kv_cache",
     [](const Args &a) {
       return !has_records(a) || kv_width(a) == rules::kRecordBytes
                  ? ""
                  : got(kv_width(a), std::to_string(rules::kRecordBytes) + " with f8_ds_mla",
                        "bytes of a key (last dimension) ");
     }},
    {"q",
     [](const Args &a) {
       return !has_records(a) || a.q.shape[2] == rules::kRecordWidth
                  ? ""
                  : got(a.q.shape[2], std::to_string(rules::kRecordWidth) + " with an f8_ds_mla cache", "Lk = ");
     }},
    {"v_head_dim",
     [](const Args &a) {
       return !has_records(a) || a.v_head_dim == rules::kRecordScaled
                  ? ""
                  : got(a.v_head_dim, std::to_string(rules::kRecordScaled) + " with an f8_ds_mla cache");
     }},
    {"kv_cache",
     [](const Args &a) {
       const auto alignment = rules::row_alignment(static_cast<DType>(a.kv_cache.dtype));
       const auto aligned = [&](int32_t i) { return a.kv_cache.shape[i] <= 1 || a.kv_cache.strides[i] % alignment == 0; };
       return !has_records(a) || (aligned(0) && (a.kv_cache.ndim == 3 || aligned(1)))
                  ? ""
                  : "got strides " + dims(a.kv_cache.strides, a.kv_cache.ndim) +
                        ", those of pages and tokens must be multiples of " + std::to_string(alignment) +
                        " bytes with f8_ds_mla";
     }},
    {"kv_cache",
     [](const Args &a) {
       if (a.kv_cache.ndim == 4) {
         return a.kv_cache.shape[1] == a.page_size
                    ? ""
                    : got(a.kv_cache.shape[1], "page_size = " + std::to_string(a.page_size), "tokens per page ");
       }
       return a.kv_cache.shape[0] % a.page_size == 0
                  ? ""
                  : got(a.kv_cache.shape[0], "a multiple of page_size = " + std::to_string(a.page_size), "tokens ");
     }},
    {"out",
     [](const Args &a) {
       return a.out.dtype == a.q.dtype ? ""
                                       : "got " + dtype_name(a.out.dtype) + ", must be that of q, " + dtype_name(a.q.dtype);
     }},
    {"out",
     [](const Args &a) {
       return want_shape(a.out, {a.q.shape[0], a.q.shape[1], a.v_head_dim}, "rows and heads of q, v_head_dim");
     }},
    {"lse",
     [](const Args &a) {
       return want_shape(a.lse, {a.q.shape[0], a.q.shape[1]}, "rows and heads of q");
     }},
    {"block_table",
     [](const Args &a) {
       return want_shape(a.block_table, {batch(a), a.block_table.shape[1]}, "one row a request: rows of q / qlen");
     }},
    {"seq_lens", [](const Args &a) { return want_shape(a.seq_lens, {batch(a)}, "one a request: rows of q / qlen"); }},
    {"real_seq_lens",
     [](const Args &a) {
       return absent(a.real_seq_lens) ? "" : want_shape(a.real_seq_lens, {batch(a)}, "one a request: rows of q / qlen");
     }},
    {"k_scale", [](const Args &a) { return absent(a.k_scale) ? "" : want_shape(a.k_scale, {1}, "one number"); }},
};

std::string check_data(const Tensor &t) {
  if (num_elements(t) == 0) return "";
  if (t.data == nullptr) return "got a null pointer for shape " + shape_text(t);
  const auto dtype = static_cast<DType>(t.dtype);
  const auto align = static_cast<uintptr_t>(rules::row_alignment(dtype));
  if (reinterpret_cast<uintptr_t>(t.data) % align != 0) {
    const std::string what = rules::is_record(dtype) ? "the f32 scales of its records" : "its element size";
    return "got an address that is not aligned to " + what + ", " + std::to_string(align) + " bytes";
  }
  return "";
}

Status invalid(const std::string &argument, const std::string &text) {
  return {MLAVERIFY_ERR_INVALID_ARGUMENT, argument + ": " + text};
}

// A newer caller's struct is larger; what we don't know of it must be 0. (This is the first version: nothing is smaller.)
Status copy_args(const Args *args, Args *copy) {
  constexpr std::size_t kLargest = 16384;  // beyond that the size is garbage, and reading on would leave the struct
  if (args == nullptr) return invalid("args", "got a null pointer");
  if (args->size < sizeof(Args) || args->size > kLargest) {
    return invalid("args.size", "got " + std::to_string(args->size) +
                                    ", must be sizeof(mlaverify_verify_args) = " + std::to_string(sizeof(Args)));
  }
  for (std::size_t i = sizeof(Args); i < args->size; ++i) {
    if (reinterpret_cast<const unsigned char *>(args)[i] != 0) {
      return invalid("args.size", "got " + std::to_string(args->size) + ", must be " + std::to_string(sizeof(Args)) +
                                      ": fields beyond are unknown to this version and not 0");
    }
  }
  std::memcpy(copy, args, sizeof(Args));
  return {};
}

template <class T>
T *data_of(const Tensor &t) {
  return static_cast<T *>(t.data);
}

Call make_call(const Args &a) {
  Call c = {};
  Problem &p = c.problem;
  const bool paged = a.kv_cache.ndim == 4;
  p.batch = static_cast<int32_t>(batch(a));
  p.qlen = a.qlen;
  p.num_heads = static_cast<int32_t>(a.q.shape[1]);
  p.qk_dim = static_cast<int32_t>(a.q.shape[2]);
  p.v_dim = a.v_head_dim;
  p.page_size = a.page_size;
  p.num_pages = kv_slots(a) / a.page_size;
  p.table_width = a.block_table.shape[1];
  p.num_kv_splits = a.num_kv_splits;
  p.flags = a.flags;
  p.sm_scale = a.sm_scale;
  p.q_dtype = static_cast<DType>(a.q.dtype);
  p.kv_dtype = static_cast<DType>(a.kv_cache.dtype);
  p.q = a.q.data;
  p.q_row_stride = a.q.strides[0];
  p.q_head_stride = a.q.strides[1];
  p.kv = a.kv_cache.data;
  p.kv_slot_stride = a.kv_cache.strides[paged ? 1 : 0];
  // (Without pages the stride says nothing, and may be too large to multiply.)
  p.kv_page_stride = paged || p.num_pages == 0 ? a.kv_cache.strides[0] : a.kv_cache.strides[0] * a.page_size;
  p.out = a.out.data;
  p.out_row_stride = a.out.strides[0];
  p.out_head_stride = a.out.strides[1];
  p.lse = data_of<float>(a.lse);
  p.lse_row_stride = a.lse.strides[0];
  p.lse_head_stride = a.lse.strides[1];
  p.block_table = data_of<const int32_t>(a.block_table);
  p.table_row_stride = a.block_table.strides[0];
  p.seq_lens = data_of<const int32_t>(a.seq_lens);
  p.real_seq_lens = data_of<const int32_t>(a.real_seq_lens);
  p.k_scale = rules::is_fp8(p.kv_dtype) ? data_of<const float>(a.k_scale) : nullptr;
  c.backend = a.backend;
  c.device = a.q.device;
  c.num_threads = a.num_threads;
  c.parallel_for = a.parallel_for;
  c.parallel_context = a.parallel_context;
  c.workspace = a.workspace;
  c.workspace_bytes = a.workspace_bytes;
  c.stream = a.stream;
  return c;
}

}  // namespace

Status validate(const mlaverify_verify_args *args, bool need_data, Call *call) {
  Args a;
  if (Status s = copy_args(args, &a); !s.ok()) return s;
  for (const CallRule &rule : kScalars) {
    if (const std::string text = rule.check(a); !text.empty()) return invalid(rule.argument, text);
  }
  if (!absent(a.q_indptr)) {
    return {MLAVERIFY_ERR_UNSUPPORTED,
            "q_indptr: is reserved for query counts per request, which no backend supports yet; must be absent"};
  }
  for (const TensorRule &rule : kTensors) {
    if (const std::string text = check_tensor(rule, a.*rule.tensor); !text.empty()) return invalid(rule.name, text);
  }
  for (const CallRule &rule : kRelations) {
    if (const std::string text = rule.check(a); !text.empty()) return invalid(rule.argument, text);
  }
  for (const TensorRule &rule : kTensors) {
    const Tensor &t = a.*rule.tensor;
    if (absent(t) && rule.optional) continue;
    if (t.device != a.q.device) return invalid(rule.name, got(t.device, "that of q, " + std::to_string(a.q.device), "device "));
    if (!need_data) continue;
    if (const std::string text = check_data(t); !text.empty()) return invalid(rule.name, text);
  }
  *call = make_call(a);
  return {};
}

}  // namespace mlaverify
