// Two requests of different lengths with 3 query tokens each, over a bf16 cache whose pages lie in no order; the same rows once more, one
// token at a time, as a decoder without drafts would ask for them.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mlaverify/mlaverify.hpp>
#include <random>
#include <vector>

namespace {

constexpr int kRequests = 2, kTokens = 3, kHeads = 16, kKeyWidth = 576, kValueWidth = 512, kPageSize = 16, kPages = 16;

mlaverify::bf16 bf16_of(float x) {
  uint32_t bits;
  static_assert(sizeof(bits) == sizeof(x));
  std::memcpy(&bits, &x, sizeof(bits));
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

std::vector<mlaverify::bf16> random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<mlaverify::bf16> numbers(count);
  for (mlaverify::bf16 &x : numbers) x = bf16_of(normal(generator));
  return numbers;
}

// Results of one call: out [tokens, heads, value width] and lse [tokens, heads] of all requests.
struct Results {
  std::vector<mlaverify::bf16> out;
  std::vector<float> lse;
};

// `q`: [requests x qlen, heads, key width]; `seq_lens`: keys of each request, its query tokens included.
Results attend(const std::vector<mlaverify::bf16> &q, int qlen, const std::vector<mlaverify::bf16> &cache,
               const std::vector<int32_t> &block_table, const std::vector<int32_t> &seq_lens) {
  const int64_t rows = static_cast<int64_t>(seq_lens.size()) * qlen;
  Results results = {std::vector<mlaverify::bf16>(static_cast<std::size_t>(rows) * kHeads * kValueWidth),
                     std::vector<float>(static_cast<std::size_t>(rows) * kHeads)};
  mlaverify_verify_args args = mlaverify::make_args();
  args.q = mlaverify::view(q.data(), {rows, kHeads, kKeyWidth});
  args.kv_cache = mlaverify::view(cache.data(), {kPages, kPageSize, 1, kKeyWidth});
  args.out = mlaverify::view(results.out.data(), {rows, kHeads, kValueWidth});
  args.lse = mlaverify::view(results.lse.data(), {rows, kHeads});
  args.block_table = mlaverify::view(block_table.data(), {kRequests, kPages / kRequests});
  args.seq_lens = mlaverify::view(seq_lens.data(), {kRequests});
  args.v_head_dim = kValueWidth;
  args.qlen = qlen;
  args.page_size = kPageSize;
  args.sm_scale = 1.0f / std::sqrt(192.0f);
  args.flags = MLAVERIFY_FLAG_BATCH_INVARIANT;

  const std::size_t alignment = MLAVERIFY_WORKSPACE_ALIGNMENT, bytes = mlaverify::workspace_size(args);
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment), &std::free);
  args.workspace = workspace.get();
  args.workspace_bytes = bytes;
  mlaverify::decode_attention_fwd_verify(args);
  return results;
}

}  // namespace

int main() try {
  const auto cache = random_numbers(std::size_t{kPages} * kPageSize * kKeyWidth, 1);
  const auto q = random_numbers(std::size_t{kRequests} * kTokens * kHeads * kKeyWidth, 2);
  const std::vector<int32_t> block_table = {9, 2, 14, 0, 7, 5, 11, 3, 12, 1, 15, 8, 4, 10, 6, 13};
  const std::vector<int32_t> seq_lens = {100, 37};

  const Results verified = attend(q, kTokens, cache, block_table, seq_lens);
  int different = 0;
  for (int token = 0; token < kTokens; ++token) {
    std::vector<mlaverify::bf16> one;  // this token of each request
    std::vector<int32_t> lens;
    for (int r = 0; r < kRequests; ++r) {
      const auto row = q.begin() + (r * kTokens + token) * kHeads * kKeyWidth;
      one.insert(one.end(), row, row + kHeads * kKeyWidth);
      lens.push_back(seq_lens[static_cast<std::size_t>(r)] - kTokens + 1 + token);  // it does not see the ones behind it
    }
    const Results decoded = attend(one, 1, cache, block_table, lens);
    for (int r = 0; r < kRequests; ++r) {
      for (int h = 0; h < kHeads; ++h) {
        const float a = verified.lse[static_cast<std::size_t>((r * kTokens + token) * kHeads + h)];
        const float b = decoded.lse[static_cast<std::size_t>(r * kHeads + h)];
        different += a != b;
      }
    }
  }
  std::printf("mlaverify %s: %d of %d rows differ between verifying and decoding token by token\n",
              mlaverify::version().c_str(), different, kRequests * kTokens * kHeads);
  return different == 0 ? 0 : 1;
} catch (const mlaverify::error &e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
