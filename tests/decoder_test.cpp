// The text that `mlaverify generate` writes does not depend on who drafts, on the length of the verify steps, on batch mates, pages or
// threads: byte by byte, with the trained model. On the cpu backend, or as MLAVERIFY_TEST_BACKEND in the environment says, on cuda.
#include "generate/decoder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "generate/mtp_drafter.h"
#include "generate/ngram_drafter.h"
#include "rules/paging.h"

namespace mlaverify::generate {
namespace {

#ifdef __SANITIZE_ADDRESS__  // twenty times as slow
constexpr int32_t kTokens = 10;
constexpr std::size_t kEveryPrompt = 4;
#else
constexpr int32_t kTokens = 40;
constexpr std::size_t kEveryPrompt = 1;
#endif

const Weights &weights() {
  static const Weights trained(MLAVERIFY_MODEL);
  return trained;
}

mlaverify_backend backend() {
  const char *name = std::getenv("MLAVERIFY_TEST_BACKEND");
  return name != nullptr && std::string(name) == "cuda" ? MLAVERIFY_BACKEND_CUDA : MLAVERIFY_BACKEND_CPU;
}

std::vector<std::string> prompts() {
  std::vector<std::string> all = {"I",
                                  "\n",
                                  "And God said, ",
                                  "In the beginning",
                                  "the son of",
                                  "Thou shalt not",
                                  "Blessed are they that ",
                                  "Now these are the names of the children of Israel, which ",
                                  std::string(70, ' '),
                                  std::string("\0\xff\x80 bytes of no text", 20),
                                  "1234567890",
                                  "And it came to pass, when ",
                                  "the son of Joash, the son of Jehu, the son of Joash, the son of ",
                                  "He that hath ears to hear, let him hear.\nAnd he said unto them, ",
                                  "holy, holy, holy, ",
                                  "Selah.\n\n"};
  const std::string verse =
      "And the king said unto his servants, Go ye up to the house of the LORD, and bring me word again of all that ye shall "
      "see there, "
      "and of the men that keep the door, what they do by day, and what they do by night.\n";
  for (std::size_t length : {63, 64, 65, 128, 190}) all.push_back(verse.substr(0, length));
  std::vector<std::string> some;
  for (std::size_t i = 0; i < all.size(); i += kEveryPrompt) some.push_back(all[i]);
  return some;
}

using MakeDrafter = std::function<std::unique_ptr<Drafter>(Model &, const DecoderOptions &)>;

const MakeDrafter kNobody = [](Model &, const DecoderOptions &) { return nullptr; };
const MakeDrafter kMtp = [](Model &model, const DecoderOptions &o) { return std::make_unique<MtpDrafter>(model, o.qlen); };
const MakeDrafter kNgram = [](Model &, const DecoderOptions &) { return std::make_unique<NgramDrafter>(); };

// Knows the texts that will be written; now and then, or always, it says something else, or less than it was asked for.
class Prophet : public Drafter {
 public:
  Prophet(std::vector<std::string> texts, double honesty) : texts_(std::move(texts)), honesty_(honesty) {}

  std::vector<std::string> draft(const LiveBatch &batch, int32_t count) override {
    std::vector<std::string> drafts;
    for (const LiveText &live : batch.texts) {
      std::string draft =
          texts_[static_cast<std::size_t>(live.id) - 1].substr(live.text->size(), static_cast<std::size_t>(count));
      for (char &c : draft) {
        if (random_.uniform() >= honesty_) c = static_cast<char>(c + 1);
      }
      if (honesty_ < 1) draft.resize(random_.below(draft.size() + 1));
      drafts.push_back(draft);
    }
    return drafts;
  }

 private:
  std::vector<std::string> texts_;
  double honesty_;
  cli::Random random_{5};
};

struct Written {
  std::vector<std::string> texts;
  DecoderStats stats;
};

DecoderOptions options(int32_t qlen) {
  DecoderOptions o;
  o.qlen = qlen;
  o.max_tokens = kTokens;
  o.max_batch = 8;
  o.page_size = 16;
  return o;
}

Written run(DecoderOptions o, const MakeDrafter &make, const std::vector<std::string> &texts, int32_t threads = 1) {
  if (o.num_pages == 1) o.num_pages = pages_for_batch(o, texts);
  Model model(weights(), {backend(), threads, o.num_pages, o.page_size});
  const std::unique_ptr<Drafter> drafter = make(model, o);
  Decoder decoder(model, drafter.get(), o, texts);
  while (decoder.step()) {
  }
  return {decoder.texts(), decoder.stats()};
}

void expect_same(const std::vector<std::string> &got, const std::vector<std::string> &want, const std::string &what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << what << ", prompt " << i + 1;
}

// One token a step, one text at a time.
const std::vector<std::string> &plain_texts() {
  static const std::vector<std::string> texts = [] {
    DecoderOptions o = options(1);
    o.max_batch = 1;
    return run(o, kNobody, prompts()).texts;
  }();
  return texts;
}

TEST(Decoder, WritesForEveryPrompt) {
  const std::vector<std::string> before = prompts(), after = plain_texts();
  ASSERT_EQ(after.size(), before.size());
  std::size_t letters = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].substr(0, before[i].size()), before[i]);
    EXPECT_EQ(after[i].size(), before[i].size() + kTokens);
    for (char c : after[i].substr(before[i].size()))
      letters += (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == ' ') ? 1 : 0;
  }
  EXPECT_GT(letters, after.size() * kTokens * 7 / 10);  // the model has learned to write words
}

TEST(Decoder, MtpAtEveryLength) {
  for (int32_t qlen = 1; qlen <= 8; ++qlen) {
    const Written got = run(options(qlen), kMtp, prompts());
    expect_same(got.texts, plain_texts(), "mtp, qlen " + std::to_string(qlen));
    if (qlen > 1) {
      EXPECT_GT(got.stats.accepted, got.stats.tokens / 4);  // it drafts well
    }
  }
}

TEST(Decoder, NgramAtEveryLength) {
  for (int32_t qlen = 1; qlen <= 8; ++qlen) {
    const Written got = run(options(qlen), kNgram, prompts());
    expect_same(got.texts, plain_texts(), "ngram, qlen " + std::to_string(qlen));
    if (qlen > 1) {
      EXPECT_GT(got.stats.accepted, 0);
    }
  }
}

TEST(Decoder, EveryMixtureOfRightAndWrong) {
  for (const double honesty : {0.0, 0.6, 0.9, 1.0}) {
    for (int32_t qlen : {2, 4, 7}) {
      const MakeDrafter make = [&](Model &, const DecoderOptions &) {
        return std::make_unique<Prophet>(plain_texts(), honesty);
      };
      const Written got = run(options(qlen), make, prompts());
      expect_same(got.texts, plain_texts(), "honesty " + std::to_string(honesty) + ", qlen " + std::to_string(qlen));
      if (honesty == 0) {
        EXPECT_EQ(got.stats.request_steps, got.stats.tokens);
      }
      if (honesty == 1) {  // whole steps, but for the last
        EXPECT_EQ(got.stats.request_steps, static_cast<int64_t>(prompts().size()) * ((kTokens + qlen - 1) / qlen));
      }
    }
  }
}

TEST(Decoder, BatchesPagesAndThreadsDoNotShow) {
  for (int32_t batch : {1, 3, 21}) {
    for (int32_t page_size : {1, 7, 64}) {
      DecoderOptions o = options(4);
      o.max_batch = batch;
      o.page_size = page_size;
      const Written got = run(o, kMtp, prompts(), batch);
      expect_same(got.texts, plain_texts(), "batch " + std::to_string(batch) + ", pages of " + std::to_string(page_size));
    }
  }
}

// A pool that holds few texts: they wait for pages, which are used again.
TEST(Decoder, ASmallPool) {
  DecoderOptions o = options(5);
  o.num_pages = 20;
  expect_same(run(o, kMtp, prompts()).texts, plain_texts(), "20 pages");
}

// 1, 100 and 50 bytes, 39 behind them and a step of 4: 3, 9 and 6 pages of 16.
TEST(Decoder, PagesAreThoseOfTheLargestBatch) {
  DecoderOptions o = options(4);
  o.max_tokens = 40;
  const std::vector<std::string> texts = {"a", std::string(100, 'a'), std::string(50, 'a')};
  const std::vector<int32_t> pages = {9, 15, 18, 18};
  for (int32_t batch = 1; batch <= 4; ++batch) {
    o.max_batch = batch;
    EXPECT_EQ(pages_for_batch(o, texts), pages[static_cast<std::size_t>(batch) - 1]) << batch;
  }
}

TEST(Decoder, AtATemperatureTheSeedDecides) {
  DecoderOptions o = options(1);
  o.temperature = 0.8;
  o.seed = 11;
  const std::vector<std::string> want = run(o, kNobody, prompts()).texts;
  for (const MakeDrafter &make : {kMtp, kNgram}) {
    for (int32_t qlen : {2, 5}) {
      o.qlen = qlen;
      expect_same(run(o, make, prompts()).texts, want, "qlen " + std::to_string(qlen));
    }
  }
  o.seed = 12;
  EXPECT_NE(run(o, kMtp, prompts()).texts, want);
  EXPECT_NE(want, plain_texts());
}

// What the observer sees is a whole step: the library computes it again, like the oracle.
TEST(Decoder, ObservedStepsCanBeRepeated) {
  DecoderOptions o = options(4);
  o.num_pages = pages_for_batch(o, prompts());
  Model model(weights(), {backend(), 1, o.num_pages, o.page_size});
  MtpDrafter drafter(model, o.qlen);
  Decoder decoder(model, &drafter, o, prompts());
  std::vector<io::Step> steps;
  decoder.observe([&](int32_t layer, io::Step step) {
    EXPECT_EQ(layer, static_cast<int32_t>(steps.size()) % weights().config.num_layers);
    steps.push_back(std::move(step));
  });
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(decoder.step());
  ASSERT_EQ(steps.size(), 12U);
  for (const io::Step &step : steps) {
    EXPECT_EQ(step.q.shape()[1], 8);
    EXPECT_EQ(step.kv_cache.shape()[3], 576);
    const auto *length = step.seq_lens.data<int32_t>();
    for (int64_t b = 0; b < step.seq_lens.size(); ++b) {
      for (int64_t i = 0; i < rules::pages_for(length[b], step.page_size); ++i) {
        const int32_t page = step.block_table.data<int32_t>()[b * step.block_table.shape()[1] + i];
        ASSERT_LT(page, step.kv_cache.shape()[0]);
        const int64_t rows = std::min<int64_t>(step.page_size, length[b] - i * step.page_size);
        for (int64_t k = 0; k < rows * 576; ++k) {
          ASSERT_TRUE(std::isfinite(rules::bf16_to_float(step.kv_cache.data<uint16_t>()[page * step.page_size * 576 + k])));
        }
      }
    }
  }
}

std::string refusal(const DecoderOptions &o, const std::vector<std::string> &texts) {
  try {
    run(o, kMtp, texts);
  } catch (const std::invalid_argument &e) {
    return e.what();
  }
  return "";
}

TEST(Decoder, RefusesPromptsThatItCannotServe) {
  DecoderOptions o = options(4);
  o.max_tokens = 40;
  EXPECT_EQ(refusal(o, {"a", ""}), "prompt 2: is empty, must have a byte at least");
  o.num_pages = 3;
  EXPECT_EQ(refusal(o, {"a", std::string(100, 'a')}), "prompt 2: needs 9 pages of 16 tokens, the pool has 3");
  o.num_pages = 1;  // as many as they need
  const int32_t positions = weights().config.max_positions;
  const auto longest = static_cast<std::size_t>(positions - 42);  // with 40 tokens, 3 drafts, less one
  EXPECT_EQ(refusal(o, {std::string(longest, 'a')}), "");
  EXPECT_EQ(refusal(o, {std::string(longest + 1, 'a')}),
            "prompt 1: its " + std::to_string(longest + 1) + " bytes, 40 to generate and drafts behind them need " +
                std::to_string(positions + 1) + " positions, the model has " + std::to_string(positions));
}

}  // namespace
}  // namespace mlaverify::generate
