#include <mlaverify/mlaverify.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 4, kHeads = 8, kKeyWidth = 576, kValueWidth = 512, kPages = 3, kPageSize = 16 };

static float q[kTokens * kHeads * kKeyWidth];
static float cache[kPages * kPageSize * kKeyWidth];
static float out[kTokens * kHeads * kValueWidth];
static float lse[kTokens * kHeads];
static int32_t block_table[3] = {2, 0, 1}; /* the request's pages, in order */
static int32_t seq_lens[1] = {40};         /* keys in the cache, the 4 new tokens included */

static mlaverify_tensor contiguous(void *data, mlaverify_dtype dtype, int32_t ndim, const int64_t *shape) {
  mlaverify_tensor t = {0};
  t.data = data;
  t.dtype = dtype;
  t.device = MLAVERIFY_HOST;
  t.ndim = ndim;
  int64_t stride = 1;
  for (int32_t i = ndim - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.strides[i] = stride; /* in elements */
    stride *= shape[i];
  }
  return t;
}

static int failed(void) {
  fprintf(stderr, "%s\n", mlaverify_last_error());
  return 1;
}

int main(void) {
  mlaverify_verify_args args = {0};
  args.size = sizeof args;
  args.q = contiguous(q, MLAVERIFY_F32, 3, (int64_t[]){kTokens, kHeads, kKeyWidth});
  args.kv_cache = contiguous(cache, MLAVERIFY_F32, 4, (int64_t[]){kPages, kPageSize, 1, kKeyWidth});
  args.out = contiguous(out, MLAVERIFY_F32, 3, (int64_t[]){kTokens, kHeads, kValueWidth});
  args.lse = contiguous(lse, MLAVERIFY_F32, 2, (int64_t[]){kTokens, kHeads});
  args.block_table = contiguous(block_table, MLAVERIFY_I32, 2, (int64_t[]){1, 3});
  args.seq_lens = contiguous(seq_lens, MLAVERIFY_I32, 1, (int64_t[]){1});
  args.v_head_dim = kValueWidth;
  args.qlen = kTokens;
  args.page_size = kPageSize;
  args.sm_scale = 0.1352f;

  size_t bytes = 0; /* enough for every later call of these shapes, whatever the lengths */
  if (mlaverify_workspace_size(&args, &bytes) != MLAVERIFY_OK) return failed();
  const size_t alignment = MLAVERIFY_WORKSPACE_ALIGNMENT;
  args.workspace_bytes = (bytes + alignment - 1) / alignment * alignment;
  args.workspace = aligned_alloc(alignment, args.workspace_bytes); /* C11; any aligned memory will do */

  if (mlaverify_decode_attention_fwd_verify(&args) != MLAVERIFY_OK) return failed();
  printf("lse of the first row: %g\n", lse[0]);
  free(args.workspace);
  return 0;
}
