/* The public header in a plain C99 program: a small call, an error, the list of backends. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlaverify/mlaverify.h"

static int failures = 0;

#define EXPECT(condition)                                                                             \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      printf("%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, mlaverify_last_error()); \
      ++failures;                                                                                     \
    }                                                                                                 \
  } while (0)

enum { kHeads = 2, kWidth = 8, kQlen = 2, kPageSize = 2, kPages = 3 };

static mlaverify_tensor tensor(void *data, mlaverify_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
  mlaverify_tensor t;
  int i;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.device = MLAVERIFY_HOST;
  t.ndim = ndim;
  t.shape[0] = a;
  t.shape[1] = b;
  t.shape[2] = c;
  t.shape[3] = d;
  for (i = ndim; i-- > 0;) t.strides[i] = i == ndim - 1 ? 1 : t.strides[i + 1] * t.shape[i + 1];
  return t;
}

/* One request of three keys, in pages 2 and 0. The query is 0, so that each token's output is the mean of the keys it sees. */
static void test_call(void) {
  float q[kQlen * kHeads * kWidth] = {0}, cache[kPages * kPageSize * kWidth], out[kQlen * kHeads * kWidth], lse[kQlen * kHeads];
  int32_t table[2] = {2, 0}, length = 3;
  mlaverify_verify_args args;
  size_t bytes = 0;
  void *workspace;
  int i, d;
  for (i = 0; i < kPages * kPageSize; ++i) {
    for (d = 0; d < kWidth; ++d) cache[i * kWidth + d] = NAN;
  }
  for (d = 0; d < kWidth; ++d) {
    cache[(2 * kPageSize + 0) * kWidth + d] = 1;
    cache[(2 * kPageSize + 1) * kWidth + d] = 2;
    cache[(0 * kPageSize + 0) * kWidth + d] = 6;
  }
  memset(out, 0xff, sizeof out);
  memset(lse, 0xff, sizeof lse);
  memset(&args, 0, sizeof args);
  args.size = sizeof args;
  args.q = tensor(q, MLAVERIFY_F32, 3, kQlen, kHeads, kWidth, 0);
  args.kv_cache = tensor(cache, MLAVERIFY_F32, 4, kPages, kPageSize, 1, kWidth);
  args.out = tensor(out, MLAVERIFY_F32, 3, kQlen, kHeads, kWidth, 0);
  args.lse = tensor(lse, MLAVERIFY_F32, 2, kQlen, kHeads, 0, 0);
  args.block_table = tensor(table, MLAVERIFY_I32, 2, 1, 2, 0, 0);
  args.seq_lens = tensor(&length, MLAVERIFY_I32, 1, 1, 0, 0, 0);
  args.v_head_dim = kWidth;
  args.qlen = kQlen;
  args.page_size = kPageSize;
  args.sm_scale = 1;
  args.num_threads = 1;

  EXPECT(mlaverify_workspace_size(&args, &bytes) == MLAVERIFY_OK);
  workspace = malloc(bytes + MLAVERIFY_WORKSPACE_ALIGNMENT);
  if (workspace == NULL) exit(2);
  args.workspace = (char *)workspace + (MLAVERIFY_WORKSPACE_ALIGNMENT - (uintptr_t)workspace % MLAVERIFY_WORKSPACE_ALIGNMENT);
  args.workspace_bytes = bytes;
  EXPECT(mlaverify_decode_attention_fwd_verify(&args) == MLAVERIFY_OK);
  for (i = 0; i < kHeads * kWidth; ++i) {
    EXPECT(fabsf(out[i] - 1.5f) < 1e-5f);
    EXPECT(fabsf(out[kHeads * kWidth + i] - 3.0f) < 1e-5f);
  }
  for (i = 0; i < kHeads; ++i) {
    EXPECT(fabs(lse[i] - log(2.0)) < 1e-5);
    EXPECT(fabs(lse[kHeads + i] - log(3.0)) < 1e-5);
  }

  table[1] = kPages;
  EXPECT(mlaverify_decode_attention_fwd_verify(&args) == MLAVERIFY_ERR_INVALID_VALUE);
  EXPECT(strcmp(mlaverify_last_error(), "block_table[0][1]: got page 3, must be in 0 ... 2") == 0);
  args.num_kv_splits = -1;
  EXPECT(mlaverify_decode_attention_fwd_verify(&args) == MLAVERIFY_ERR_INVALID_ARGUMENT);
  EXPECT(strcmp(mlaverify_last_error(), "num_kv_splits: got -1, must be >= 0") == 0);
  free(workspace);
}

static void test_backends(void) {
  int32_t i, reference = 0;
  EXPECT(mlaverify_backend_count() >= 2);
  for (i = 0; i < mlaverify_backend_count(); ++i) {
    mlaverify_backend_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    EXPECT(mlaverify_get_backend_info(i, &info) == MLAVERIFY_OK);
    EXPECT(info.name != NULL && info.detail != NULL);
    if (info.backend == MLAVERIFY_BACKEND_REFERENCE) reference = info.available;
  }
  EXPECT(reference == 1);
}

static void test_planning(void) {
  mlaverify_verify_config config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  EXPECT(mlaverify_select_verify_config(1, 4, 16, MLAVERIFY_HOST, "gfx942", &config) == MLAVERIFY_OK);
  EXPECT(config.block_h == 32);
  EXPECT(mlaverify_verify_num_kv_splits(16384, 1, 4, 16, 132, 64, 1.0, 64, 8) == 132);
  EXPECT(strcmp(mlaverify_version(), MLAVERIFY_VERSION_STRING) == 0);
  EXPECT(strcmp(mlaverify_status_name(MLAVERIFY_OK), "MLAVERIFY_OK") == 0);
}

int main(void) {
  test_call();
  test_backends();
  test_planning();
  if (failures == 0) printf("all right\n");
  return failures == 0 ? 0 : 1;
}
