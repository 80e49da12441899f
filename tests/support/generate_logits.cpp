// Scores of a model's C++ side, for a test that compares them with an independent implementation:
//
//   generate_logits cpu|cuda MODEL TEXT OUT.safetensors
//
// reads the bytes of the file TEXT (2 at least) in steps of 1, 2, 3, ... tokens on small pages, and writes "logits" [bytes, 256], and where
// there is an MTP module "draft" [bytes - 1, 256], its scores of the byte after the next, and "again" [1, 256], those of a second pass that
// takes the best byte of the first.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include "generate/model.h"
#include "generate/sampler.h"
#include "io/safetensors.h"

using namespace mlaverify::generate;  // NOLINT: a program of one file

namespace {

constexpr int32_t kPageSize = 5;

template <class Forward>
void in_steps(int32_t count, const std::vector<int32_t> &table, const Forward &forward) {
  for (int32_t first = 0, qlen = 1; first < count; first += qlen, ++qlen) {
    const int32_t n = std::min(qlen, count - first), end = first + n;
    forward(Sequences{1, n, table.data(), static_cast<int64_t>(table.size()), &end}, first);
  }
}

void write_logits(mlaverify_backend backend, const char *model_folder, const char *text_path, const char *out_path) {
  const Weights weights(model_folder);
  std::ifstream file(text_path, std::ios::binary);
  const std::vector<uint8_t> text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto count = static_cast<int32_t>(text.size());
  std::vector<int32_t> table(text.size() / kPageSize + 2);
  std::iota(table.rbegin(), table.rend(), 0);  // pages in reverse
  Model model(weights, {backend, 1, static_cast<int32_t>(table.size()), kPageSize});
  const int64_t hidden = weights.config.hidden_size;
  std::vector<float> states(text.size() * static_cast<std::size_t>(hidden)), logits(text.size() * kVocabulary);
  in_steps(count, table, [&](const Sequences &s, int32_t first) {
    model.forward(s, text.data() + first, states.data() + first * hidden);
    model.logits(s.rows(), states.data() + first * hidden, logits.data() + static_cast<int64_t>(first) * kVocabulary);
  });
  std::vector<mlaverify::io::TensorRef> tensors = {{"logits", mlaverify::DType::f32, {count, kVocabulary}, logits.data()}};
  std::vector<float> draft(logits.size()), again(kVocabulary);
  if (weights.config.has_mtp) {
    in_steps(count - 1, table, [&](const Sequences &s, int32_t first) {
      float *rows = states.data() + first * hidden;
      model.draft_forward(s, text.data() + first + 1, rows, rows);
      model.draft_logits(s.rows(), rows, draft.data() + static_cast<int64_t>(first) * kVocabulary);
    });
    const uint8_t best = best_token(draft.data() + static_cast<int64_t>(count - 2) * kVocabulary);
    float *last = states.data() + (count - 2) * hidden;
    model.draft_forward({1, 1, table.data(), static_cast<int64_t>(table.size()), &count}, &best, last, last);
    model.draft_logits(1, last, again.data());
    tensors.push_back({"draft", mlaverify::DType::f32, {count - 1, kVocabulary}, draft.data()});
    tensors.push_back({"again", mlaverify::DType::f32, {1, kVocabulary}, again.data()});
  }
  mlaverify::io::write_safetensors(out_path, tensors, {});
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  try {
    const auto backend = std::strcmp(argv[1], "cuda") == 0 ? MLAVERIFY_BACKEND_CUDA : MLAVERIFY_BACKEND_CPU;
    write_logits(backend, argv[2], argv[3], argv[4]);
    return 0;
  } catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
