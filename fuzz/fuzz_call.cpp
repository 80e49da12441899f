// A legal call of any small shape and layout gives what the oracle gives, and writes nothing else. The same call with one fault is
// refused, with a message, and writes nothing.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/test_call.h"

namespace mlaverify::test {
namespace {

TestCase any_case(FuzzedDataProvider *from) {
  TestCase c;
  const auto up_to = [&](int32_t most) { return from->ConsumeIntegralInRange<int32_t>(0, most); };
  c.heads = up_to(9);
  c.qlen = 1 + up_to(5);
  c.lv = 8 * (1 + up_to(8));
  c.lk = c.lv + 8 * up_to(3);
  c.page_size = 1 + up_to(20);
  c.lens.assign(static_cast<std::size_t>(up_to(4)), 0);
  for (int32_t &len : c.lens) len = up_to(90);
  if (from->ConsumeBool()) {
    c.real_lens = c.lens;
    for (int32_t &len : c.real_lens) len = std::max(0, len - up_to(3));
  }
  const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f8_ds_mla};
  c.q_dtype = types[up_to(2)];
  c.kv_dtype = types[up_to(5)];
  if (from->ConsumeBool()) c.k_scale = 0.25f * static_cast<float>(1 + up_to(8));
  c.sm_scale = 0.05f * static_cast<float>(up_to(20) - 4);
  c.num_kv_splits = up_to(9);
  c.flat = from->ConsumeBool();
  c.slot_pad = up_to(9);
  c.page_pad = c.flat ? 0 : up_to(9);
  c.spare_pages = 1 + up_to(3);
  c.table_extra = up_to(3);
  c.table_pad = up_to(3);
  c.q_pad = up_to(5);
  c.out_pad = up_to(5);
  c.heads_outer = from->ConsumeBool();
  c.shift = up_to(3);
  c.seed = from->ConsumeIntegral<uint8_t>();
  if (rules::is_record(c.kv_dtype)) {
    c.lk = rules::kRecordWidth;
    c.lv = rules::kRecordScaled;
    for (int32_t *pad : {&c.slot_pad, &c.page_pad, &c.shift}) *pad *= rules::kRecordAlignment;
  }
  return c;
}

// Makes one thing wrong that the library can see. False: there is no such thing in this call.
bool make_wrong(FuzzedDataProvider *from, const TestCase &c, mlaverify_verify_args *args) {
  mlaverify_tensor *const tensors[] = {&args->q, &args->kv_cache, &args->out, &args->lse, &args->block_table, &args->seq_lens};
  mlaverify_tensor *const t = tensors[from->ConsumeIntegralInRange<int>(0, 5)];
  const auto any = from->ConsumeIntegral<int32_t>();
  const int32_t low = any < 0 ? any : -1 - any;
  switch (from->ConsumeIntegralInRange<int>(0, 15)) {
    case 0: args->size = from->ConsumeIntegralInRange<std::size_t>(0, sizeof(*args) - 1); return true;
    case 1: args->qlen = std::min(low + 1, 0); return true;
    case 2: args->page_size = std::min(low + 1, 0); return true;
    case 3: args->v_head_dim = any; return any % 8 != 0 || any <= 0 || any != c.lv;
    case 4: args->num_kv_splits = low; return true;
    case 5: args->flags = static_cast<uint32_t>(any) | 4u; return true;
    case 6: args->backend = any; return any < 0 || any > MLAVERIFY_BACKEND_CUDA;
    case 7: args->num_threads = any; return any < 0 || any > MLAVERIFY_MAX_THREADS;
    case 8: args->workspace_bytes -= args->workspace_bytes > 0; return args->workspace_bytes > 0;
    case 9: args->workspace = static_cast<char *>(args->workspace) + 1; return args->workspace_bytes > 1;
    case 10: t->dtype = any; return any < 0 || any > MLAVERIFY_F8_DS_MLA;
    case 11: t->ndim = any; return any < 1 || any > 4;
    case 12: t->device = any; return any < MLAVERIFY_HOST;
    case 13: t->shape[from->ConsumeIntegralInRange<int32_t>(0, t->ndim - 1)] = low; return true;
    case 14: t->reserved = any; return any != 0;
    default: t->data = nullptr; return !std::count(t->shape, t->shape + t->ndim, 0);  // nobody looks at an empty tensor
  }
}

[[noreturn]] void fail(const TestCase &c, const std::string &what) {
  std::fprintf(stderr, "%s\n%s\n", what.c_str(), repeat_command(c).c_str());
  std::abort();
}

}  // namespace
}  // namespace mlaverify::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, std::size_t size) {
  using namespace mlaverify::test;
  FuzzedDataProvider from(data, size);
  const TestCase c = any_case(&from);
  TestCall call(c);
  if (from.ConsumeBool()) call.args.flags |= MLAVERIFY_FLAG_BATCH_INVARIANT;
  call.args.num_threads = from.ConsumeIntegralInRange<int32_t>(1, 3);
  call.args.parallel_for = [](void *, int32_t count, void (*task)(void *, int32_t), void *context) {  // one by one, backwards
    while (count-- > 0) task(context, count);
  };
  if (const std::string fault = call.run_and_compare(); !fault.empty()) fail(c, fault);

  call.poison_outputs();
  mlaverify_verify_args bad = call.args;
  if (!make_wrong(&from, c, &bad)) return 0;
  if (mlaverify_decode_attention_fwd_verify(&bad) == MLAVERIFY_OK) fail(c, "a wrong call was computed");
  if (std::string(mlaverify_last_error()).empty()) fail(c, "a refusal without a message");
  if (!call.outputs_untouched()) fail(c, "a refused call wrote");
  return 0;
}
