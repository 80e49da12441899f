/*
 * mlaverify.h: causal MLA verify attention over a paged latent KV cache. The whole public C interface.
 *
 * C99; no CUDA header is needed. Every struct starts with its own size, so that fields can be appended without breaking
 * callers. No function prints, exits or throws. A function that can fail returns a status, and mlaverify_last_error() then
 * holds this thread's message: the argument, what it was, what it should be.
 *
 * Shapes: B requests, qlen query tokens each, H heads, Lk key width, Lv value width. A value is the first Lv numbers of its
 * key. Query token t of request b sees keys 0 ... n-1 with
 *
 *     n = max(min(L[b] - qlen + 1 + t, L_real[b]), 0)            (L = seq_lens, L_real = real_seq_lens, or L without them)
 *
 * and a row with n = 0 gets out = 0 and lse = -inf. Nothing else in the cache or the block table is looked at.
 */
#ifndef MLAVERIFY_H
#define MLAVERIFY_H

#include <stddef.h>
#include <stdint.h>

#define MLAVERIFY_VERSION_MAJOR 0
#define MLAVERIFY_VERSION_MINOR 1
#define MLAVERIFY_VERSION_PATCH 0
#define MLAVERIFY_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define MLAVERIFY_API __attribute__((visibility("default")))
#else
#define MLAVERIFY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------------------------------- */

typedef int32_t mlaverify_status; /* 0 is success */
#define MLAVERIFY_OK 0
#define MLAVERIFY_ERR_INVALID_ARGUMENT 1 /* a fault of the call that the host can see: shape, dtype, stride, pointer, range */
#define MLAVERIFY_ERR_INVALID_VALUE 2    /* a fault found in lengths or page ids (CPU backends, checked mode) */
#define MLAVERIFY_ERR_UNSUPPORTED 3      /* legal, but no backend here can do it; the message gives each backend's reason */
#define MLAVERIFY_ERR_WORKSPACE 4        /* workspace missing, too small or misaligned */
#define MLAVERIFY_ERR_DEVICE 5           /* the device or its runtime failed */
#define MLAVERIFY_ERR_INTERNAL 6         /* a fault of the library: please report it */

/* "MLAVERIFY_OK" and so on; "unknown status" for other numbers. Static storage. */
MLAVERIFY_API const char *mlaverify_status_name(mlaverify_status status);

/* The message of this thread's last failure, or "" if there was none; valid until the thread's next call that fails. */
MLAVERIFY_API const char *mlaverify_last_error(void);

/* Version of the library in use, "major.minor.patch". Static storage. */
MLAVERIFY_API const char *mlaverify_version(void);

/* ---- Tensors ------------------------------------------------------------------------------------------------------ */

typedef int32_t mlaverify_dtype;
#define MLAVERIFY_F32 0
#define MLAVERIFY_F16 1
#define MLAVERIFY_BF16 2
#define MLAVERIFY_F8_E4M3 3 /* the finite-only variant (E4M3FN): no infinities, 0x7f and 0xff are NaN */
#define MLAVERIFY_F8_E5M2 4
#define MLAVERIFY_I32 5
/* A record of 656 bytes a token (vLLM's fp8_ds_mla, of DeepSeek V3.2): bytes 0 ... 511 are 512 e4m3 numbers, 512 ... 527 four f32
 * scales, of which number g multiplies numbers 128 g ... 128 g + 127 (in f32), 528 ... 655 the last 64 numbers of a key in bf16. Lk is
 * 576, Lv 512. Only kv_cache has this type, and it is then a tensor of bytes: its last dimension is 656, and its strides count bytes. */
#define MLAVERIFY_F8_DS_MLA 6

typedef int32_t mlaverify_device; /* -1: host memory; n >= 0: CUDA device n */
#define MLAVERIFY_HOST (-1)

/* A view of the caller's memory. Strides are in elements and may be any that do not make elements of an output overlap.
 * Data must be aligned to its element size; of MLAVERIFY_F8_DS_MLA, data and strides must be multiples of 4 bytes (of 16, to be fast on a
 * GPU). */
typedef struct mlaverify_tensor {
  void *data; /* NULL: absent (optional arguments), or a tensor without elements */
  mlaverify_dtype dtype;
  mlaverify_device device;
  int32_t ndim;     /* 0 ... 4 */
  int32_t reserved; /* 0 */
  int64_t shape[4];
  int64_t strides[4];
} mlaverify_tensor;

/* ---- The operation ------------------------------------------------------------------------------------------------ */

typedef int32_t mlaverify_backend;
#define MLAVERIFY_BACKEND_AUTO 0      /* by where q lives; MLAVERIFY_BACKEND in the environment may name one instead */
#define MLAVERIFY_BACKEND_REFERENCE 1 /* float64, slow, plain: what the others are compared with */
#define MLAVERIFY_BACKEND_CPU 2
#define MLAVERIFY_BACKEND_CUDA 3

/* A row's bits depend only on its q, its visible keys and the scales; on a GPU also on the kernel, which follows from types, widths, and
   whether addresses and strides allow 16-byte copies. */
#define MLAVERIFY_FLAG_BATCH_INVARIANT 1u
/* Refuse bad lengths and page ids. CPU backends always do; cuda reads them back first: the call waits for the stream, and is
   UNSUPPORTED where the stream is being captured. */
#define MLAVERIFY_FLAG_CHECKED 2u

#define MLAVERIFY_WORKSPACE_ALIGNMENT 256 /* bytes */
#define MLAVERIFY_MAX_THREADS 1024
#define MLAVERIFY_MAX_HEAD_DIM 1024 /* Lv and Lk are multiples of 8, 8 <= Lv <= Lk <= 1024 */

/* A caller's threads: calls task(task_context, i) once for each i in 0 ... count-1, in any order, on any threads, as many at a time as
   it likes (one task never waits for another), and returns when all have returned. `context` is the caller's own. */
typedef void (*mlaverify_parallel_for)(void *context, int32_t count, void (*task)(void *task_context, int32_t index),
                                       void *task_context);

typedef struct mlaverify_verify_args {
  size_t size; /* sizeof(mlaverify_verify_args) */

  mlaverify_tensor q; /* [B*qlen, H, Lk] f32, f16, bf16; last dim contiguous, other strides free */
  mlaverify_tensor
      kv_cache;         /* [num_pages, page_size, 1, Lk] or [num_pages*page_size, 1, Lk] f32, f16, bf16, f8_e4m3, f8_e5m2; or
                                     f8_ds_mla with 656 in place of Lk; last dim contiguous, other strides free */
  mlaverify_tensor out; /* [B*qlen, H, Lv], dtype of q; last dim contiguous, other strides free */
  mlaverify_tensor lse; /* [B*qlen, H] f32, strides free; natural logarithm */
  mlaverify_tensor block_table;   /* [B, max_pages] i32; last dim contiguous, row stride free */
  mlaverify_tensor seq_lens;      /* [B] i32, contiguous: keys of each request, the qlen new tokens included */
  mlaverify_tensor real_seq_lens; /* [B] i32, contiguous, optional: true lengths where seq_lens is padded */
  mlaverify_tensor k_scale;  /* one f32 ([] or [1]), optional (1): multiplies an f8_e4m3 or f8_e5m2 cache; ignored with other
                                     types, f8_ds_mla among them, which has scales of its own */
  mlaverify_tensor q_indptr; /* reserved for per-request query counts: must be absent */

  int32_t v_head_dim;    /* Lv */
  int32_t qlen;          /* query tokens per request, >= 1 */
  int32_t page_size;     /* tokens per page, >= 1, any */
  int32_t num_kv_splits; /* 0: the library chooses; >= 1: exactly the split rule (docs/mask-and-split.md). The CPU backends cut
                            at fixed key positions and only validate it */
  float sm_scale;        /* softmax scale; any value, NaN included, is arithmetic and not an error */
  uint32_t flags;        /* MLAVERIFY_FLAG_* */

  void *workspace;        /* on the device of q; needs no initialisation, contents undefined afterwards */
  size_t workspace_bytes; /* at least mlaverify_workspace_size() of the same arguments */
  void *stream;           /* cudaStream_t; ignored by CPU backends */
  mlaverify_backend backend;
  int32_t num_threads; /* CPU backends: threads at most, <= MLAVERIFY_MAX_THREADS; 0 = the OpenMP default */

  mlaverify_parallel_for parallel_for; /* optional, cpu backend: whose threads to use instead of OpenMP's; num_threads, >= 1
                                          then, says how many pieces the work is cut in at most. Called at most twice a call */
  void *parallel_context;              /* what it is called with */
} mlaverify_verify_args;

/* Computes out and lse, which must overlap neither each other nor any other argument (that is not checked). Everything else
 * that the host can see is checked before any work starts; on failure nothing is written.
 * Batch 0, 0 heads and 0 rows are legal and do nothing. Thread-safe: concurrent calls need separate workspaces and outputs.
 *
 * INVALID_ARGUMENT, WORKSPACE, UNSUPPORTED as above; INVALID_VALUE (CPU backends): a negative length, a page id outside the
 * cache among the pages that some row sees, a block table narrower than the largest n. */
MLAVERIFY_API mlaverify_status mlaverify_decode_attention_fwd_verify(const mlaverify_verify_args *args);

/* Bytes of workspace that serve this call and every later one with the same shapes, strides, dtypes, flags, backend,
 * num_threads and num_kv_splits, whatever the lengths. Data pointers may be NULL; no tensor data is read. */
MLAVERIFY_API mlaverify_status mlaverify_workspace_size(const mlaverify_verify_args *args, size_t *bytes);

/* Makes every variant that serving can reach for these tensors ready: qlens[0 ... num_qlens), both row-count configurations,
 * one split and several, so that nothing is loaded or allocated later. Each qlens[i] must be >= 1; q and out give the widths,
 * dtypes and heads (their row count need not fit every qlen), flags whether it is the batch-invariant mode. Touches neither outputs nor cache; may allocate and synchronise;
 * not to be called during stream capture. */
MLAVERIFY_API mlaverify_status mlaverify_warmup_decode_attention_fwd_verify(const mlaverify_verify_args *args,
                                                                            const int32_t *qlens, int32_t num_qlens);

/* ---- Planning ----------------------------------------------------------------------------------------------------- */

/* A launch configuration. Names in parentheses are those of the Triton implementation that this operation comes from. */
typedef struct mlaverify_verify_config {
  size_t size;                                       /* sizeof(mlaverify_verify_config), set by the caller */
  int32_t block_h;                                   /* (BLOCK_H) query rows of a tile */
  int32_t block_n;                                   /* (BLOCK_N) keys of a tile */
  int32_t split_align;                               /* (SPLIT_ALIGN) a split is a multiple of this many keys */
  int32_t min_split_len;                             /* (MIN_SPLIT_LEN) keys of a split at least */
  int32_t q_split;                                   /* (QSPLIT) 1: Q handled in two halves of its width */
  int32_t num_warps, num_stages;                     /* 0 on a CPU */
  int32_t s2_block_s, s2_num_warps;                  /* the merge: splits per step, warps; 0 on a CPU */
  int32_t waves_per_eu, matrix_instr_nonkdim, kpack; /* AMD rows; 0 elsewhere */
} mlaverify_verify_config;

/* The launch configuration for (batch, qlen, num_heads). arch NULL: of the device (-1: this CPU). arch "cpu", "gfx942", ...:
 * that table, whatever is present. batch >= 0, qlen >= 1, num_heads >= 0. */
MLAVERIFY_API mlaverify_status mlaverify_select_verify_config(int32_t batch, int32_t qlen, int32_t num_heads,
                                                              mlaverify_device device, const char *arch,
                                                              mlaverify_verify_config *config);

/* Static upper bound on KV splits, safe to bake into a captured graph: at least 1. The documented defaults of the last three
 * are occupancy 1.0, min_work_per_split 64, max_splits 8. Returns 0, with mlaverify_last_error() set, for qlen < 1, num_heads <
 * 0, sm_count < 1, block_h < 1, an occupancy that is negative, not finite or beyond 2^20 slots, or more than 2^40 programs. */
MLAVERIFY_API int32_t mlaverify_verify_num_kv_splits(int64_t max_seq_len, int64_t batch, int32_t qlen, int32_t num_heads,
                                                     int32_t sm_count, int32_t block_h, double occupancy,
                                                     int32_t min_work_per_split, int32_t max_splits);

/* ---- Backends ----------------------------------------------------------------------------------------------------- */

typedef struct mlaverify_backend_info {
  size_t size; /* sizeof(mlaverify_backend_info), set by the caller */
  mlaverify_backend backend;
  int32_t available;  /* 1: can run on this machine */
  const char *name;   /* as in MLAVERIFY_BACKEND and --backend; static storage */
  const char *detail; /* available: what it runs with ("avx2"); else why it cannot run here; static storage */
} mlaverify_backend_info;

/* Backends in order of preference, unavailable ones included. INVALID_ARGUMENT for an index outside 0 ... count-1. */
MLAVERIFY_API int32_t mlaverify_backend_count(void);
MLAVERIFY_API mlaverify_status mlaverify_get_backend_info(int32_t index, mlaverify_backend_info *info);

#ifdef __cplusplus
}
#endif
#endif
