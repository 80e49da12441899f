// mlaverify generate: text from a model by speculative decoding, and what the drafts brought.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "api/env.h"
#include "backend_option.h"
#include "error.h"
#include "generate/decoder.h"
#include "generate/mtp_drafter.h"
#include "generate/ngram_drafter.h"
#include "generate/small_file.h"
#include "io/cublas.h"
#include "machine.h"
#include "mlaverify/mlaverify.hpp"
#include "verb.h"

namespace mlaverify::cli {
namespace {

using generate::Decoder;
using generate::DecoderOptions;
using generate::DecoderStats;

struct GenerateOptions {
  std::string model;
  std::vector<std::string> prompts, prompt_files;
  std::string draft = "mtp";
  DecoderOptions decoder;
  std::optional<int32_t> pool_pages;
  mlaverify_backend backend = MLAVERIFY_BACKEND_AUTO;
  int32_t threads = 1;
  bool no_compare = false;
  bool json = false;
  std::optional<std::string> record;
  std::vector<int64_t> record_steps = {8};
};

// A run: its texts, and where the time went.
struct Result {
  std::vector<std::string> texts;
  DecoderStats stats;

  double mean_accepted() const { return static_cast<double>(stats.tokens) / static_cast<double>(stats.request_steps); }
  double tokens_per_second() const { return static_cast<double>(stats.tokens) / stats.seconds; }
  double attention_share() const { return stats.attention_seconds / stats.seconds; }
};

void write_out(const std::string &text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Shows texts as they come: a single one byte by byte, of several each when it and those before it are complete. On a terminal drafted
// bytes are green, and control characters do not reach it.
class Screen {
 public:
  Screen(const std::vector<std::string> &prompts, int32_t max_tokens)
      : prompts_(prompts),
        max_tokens_(static_cast<std::size_t>(max_tokens)),
        texts_(prompts.size()),
        terminal_(isatty(STDOUT_FILENO) != 0) {}

  void show(std::size_t prompt, const std::string &bytes, std::size_t drafted) {
    Text &text = texts_[prompt];
    if (text.size == 0) {
      text.last = prompts_[prompt].back();
      if (prompts_.size() == 1) write(prompts_[0]);
    }
    text.shown += marked(bytes.substr(0, drafted), text.last);
    text.shown += plain(bytes.substr(drafted), text.last);
    text.size += bytes.size();
    if (prompts_.size() == 1) {
      write_out(text.shown);
      text.shown.clear();
      return;
    }
    for (; next_ < texts_.size() && texts_[next_].size == max_tokens_; ++next_) {
      fmt::print("---- prompt {}\n", next_ + 1);
      write(prompts_[next_]);
      write_out(texts_[next_].shown + "\n");
    }
  }

  // What is written next has a line of its own.
  void break_off() const {
    if (begun_) write_out("\n");
  }

 private:
  struct Text {
    std::string shown;  // still to be written
    std::size_t size = 0;
    char last = 0;  // byte seen
  };

  // `last` is the byte before, then the last of `bytes`.
  std::string plain(std::string bytes, char &last) const {
    if (!terminal_) return bytes;
    for (char &c : bytes) {
      const auto u = static_cast<unsigned char>(c);
      const bool ascii_control = (u < 0x20 && c != '\n' && c != '\t') || u == 0x7f;
      const bool high_control = u >= 0x80 && u < 0xa0 && last == '\xc2';  // U+0080 ... U+009F in UTF-8
      last = c;
      if (ascii_control || high_control) c = '?';
    }
    return bytes;
  }
  std::string marked(const std::string &bytes, char &last) const {
    const std::string text = plain(bytes, last);
    return terminal_ && !text.empty() ? "\033[32m" + text + "\033[0m" : text;
  }
  void write(const std::string &bytes) {
    begun_ = true;
    char last = 0;
    write_out(plain(bytes, last));
  }

  const std::vector<std::string> &prompts_;
  std::size_t max_tokens_;
  std::vector<Text> texts_;
  std::size_t next_ = 0;
  bool begun_ = false, terminal_;
};

// Writes the attention of chosen verify steps to step files.
class Recorder {
 public:
  Recorder(std::string folder, std::vector<int64_t> steps, std::string model)
      : folder_(std::move(folder)), steps_(std::move(steps)), model_(std::move(model)) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) throw Failure(kBadInput, folder_ + ": cannot be made: " + error.message());
  }

  void record(int64_t step, int32_t layer, io::Step seen) {
    if (std::find(steps_.begin(), steps_.end(), step) == steps_.end()) return;
    seen.note = fmt::format("{}, layer {}, verify step {} of mlaverify generate", model_, layer, step);
    const auto path = std::filesystem::path(folder_) / fmt::format("step-{:04}-layer-{}.safetensors", step, layer);
    io::write_step(path.string(), seen);
    files_.push_back(path.string());
  }
  const std::vector<std::string> &files() const { return files_; }

  // One line a file, and a step that did not come.
  std::string to_text(int64_t steps_taken) const {
    std::string out;
    for (const std::string &file : files_) out += fmt::format("recorded   {}\n", file);
    for (int64_t step : steps_) {
      if (step > steps_taken) out += fmt::format("recorded   nothing of step {}: the last was step {}\n", step, steps_taken);
    }
    return out;
  }

 private:
  std::string folder_;
  std::vector<int64_t> steps_;
  std::string model_;
  std::vector<std::string> files_;
};

std::unique_ptr<generate::Drafter> make_drafter(const GenerateOptions &options, generate::Model &model) {
  if (options.draft == "ngram") return std::make_unique<generate::NgramDrafter>();
  if (options.draft == "mtp") return std::make_unique<generate::MtpDrafter>(model, options.decoder.qlen);
  return nullptr;
}

generate::ModelOptions model_options(const GenerateOptions &options) {
  return {options.backend, options.threads, options.decoder.num_pages, options.decoder.page_size};
}

// Generates, on caches of its own. `screen` and `recorder` may be nullptr.
Result generate_texts(const GenerateOptions &options, const generate::Weights &weights, const std::vector<std::string> &prompts,
                      Screen *screen, Recorder *recorder) {
  generate::Model model(weights, model_options(options));
  const std::unique_ptr<generate::Drafter> drafter = make_drafter(options, model);
  Decoder::Listener listener;
  if (screen != nullptr) {
    listener = [screen](std::size_t prompt, const std::string &bytes, std::size_t drafted) {
      screen->show(prompt, bytes, drafted);
    };
  }
  Decoder decoder(model, drafter.get(), options.decoder, prompts, listener);
  if (recorder != nullptr) {
    decoder.observe([&](int32_t layer, io::Step step) { recorder->record(decoder.stats().steps + 1, layer, std::move(step)); });
  }
  while (decoder.step()) {
  }
  return {decoder.texts(), decoder.stats()};
}

// The first calls of a process load kernels and start threads; they are not what is measured.
void warm_up(GenerateOptions options, const generate::Weights &weights, const std::vector<std::string> &prompts) {
  options.decoder.max_tokens = std::min(options.decoder.max_tokens, 8);
  generate_texts(options, weights, {prompts[0]}, nullptr, nullptr);
}

// "" or where the texts differ.
std::string difference(const std::vector<std::string> &with, const std::vector<std::string> &without) {
  for (std::size_t i = 0; i < with.size(); ++i) {
    const auto at = std::mismatch(with[i].begin(), with[i].end(), without[i].begin(), without[i].end());
    if (with[i] != without[i]) return fmt::format("byte {} of text {}", at.first - with[i].begin() + 1, i + 1);
  }
  return "";
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string to_text(const GenerateOptions &options, const std::string &backend, const Result &result,
                    const std::optional<Result> &without, const std::string &differs) {
  const DecoderStats &s = result.stats;
  std::string out;
  const auto line = [&out](const char *label, const std::string &text) { out += fmt::format("{:<10} {}\n", label, text); };
  line("drafts", options.draft == "none"
                     ? "none"
                     : fmt::format("{}, up to {} tokens verified a step: {} of {} drafted bytes accepted ({:.0f} %)",
                                   options.draft, options.decoder.qlen, s.accepted, s.drafted, percent(s.accepted, s.drafted)));
  line("attention", options.backend == MLAVERIFY_BACKEND_CUDA ? backend + "; all else on the GPU too, matrix products by cuBLAS"
                                                              : fmt::format("{}; all else on the CPU, {} thread{}", backend,
                                                                            options.threads, options.threads == 1 ? "" : "s"));
  line("text", fmt::format("{} bytes in {} steps: {:.2f} a step and text (mean accepted length)", s.tokens, s.steps,
                           result.mean_accepted()));
  line("speed",
       fmt::format(
           "{:.0f} bytes/s, {:.0f} ms: attention {:.0f} %, drafting {:.0f} % (its attention included); prompts {:.0f} ms",
           result.tokens_per_second(), s.seconds * 1e3, 100 * result.attention_share(), 100 * s.draft_seconds / s.seconds,
           s.prompt_seconds * 1e3));
  if (without) {
    line("undrafted",
         fmt::format("{:.0f} bytes/s, {:.0f} ms: attention {:.0f} %; {} text", without->tokens_per_second(),
                     without->stats.seconds * 1e3, 100 * without->attention_share(), differs.empty() ? "the same" : "ANOTHER"));
    line("speed-up", fmt::format("{:.2f}", without->stats.seconds / s.seconds));
  }
  return out;
}

nlohmann::json to_json(const Result &r) {
  const DecoderStats &s = r.stats;
  return {{"tokens", s.tokens},
          {"steps", s.steps},
          {"mean_accepted_length", r.mean_accepted()},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"seconds", s.seconds},
          {"prompt_seconds", s.prompt_seconds},
          {"draft_seconds", s.draft_seconds},
          {"attention_seconds", s.attention_seconds},
          {"tokens_per_second", r.tokens_per_second()}};
}

nlohmann::json to_json(const GenerateOptions &options, const std::string &backend, const std::vector<std::string> &prompts,
                       const Result &result, const std::optional<Result> &without, const std::string &differs,
                       const std::vector<std::string> &recorded) {
  nlohmann::json texts = nlohmann::json::array();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    texts.push_back({{"prompt", prompts[i]}, {"text", result.texts[i].substr(prompts[i].size())}});
  }
  nlohmann::json out = {
      {"version", mlaverify_version()}, {"model", options.model},       {"backend", backend},
      {"draft", options.draft},         {"qlen", options.decoder.qlen}, {"temperature", options.decoder.temperature},
      {"seed", options.decoder.seed},   {"threads", options.threads},   {"texts", texts},
      {"drafted", to_json(result)},     {"undrafted", nullptr},         {"speed_up", nullptr},
      {"same_text", nullptr},           {"recorded", recorded}};
  if (without) {
    out["undrafted"] = to_json(*without);
    out["speed_up"] = without->stats.seconds / result.stats.seconds;
    out["same_text"] = differs.empty();
  }
  return out;
}

// Where nobody asks for a backend, the GPU's needs cuBLAS too.
mlaverify_backend_info backend_for_model(mlaverify_backend asked) {
  const mlaverify_backend_info backend = chosen_backend(asked);
  const bool free_choice = asked == MLAVERIFY_BACKEND_AUTO && env_backend().empty();
  if (!free_choice || backend.backend != MLAVERIFY_BACKEND_CUDA || io::Cublas().usable()) return backend;
  return chosen_backend(MLAVERIFY_BACKEND_CPU);
}

// Refused before it is asked for: an allocation that the machine cannot back may end the process only once it is written to. (A GPU says
// so itself.)
void demand_memory(const GenerateOptions &generate_options, const generate::Weights &weights) {
  if (generate_options.backend == MLAVERIFY_BACKEND_CUDA) return;
  const DecoderOptions &options = generate_options.decoder;
  const double bytes = static_cast<double>(options.num_pages) * options.page_size * weights.config.key_width() * 2.0 *
                       static_cast<double>(weights.layers.size());
  const auto available = static_cast<double>(available_memory_bytes());
  if (available > 0 && bytes > available) {
    throw Failure(kBadInput,
                  fmt::format("the caches: {} pages of {} tokens take {:.1f} GB, this machine has {:.1f} GB available",
                              options.num_pages, options.page_size, bytes / 1e9, available / 1e9));
  }
}

int run_generate(GenerateOptions &options) {
  const mlaverify_backend_info backend = backend_for_model(options.backend);
  options.backend = backend.backend;
  if (!(options.decoder.temperature >= 0 && options.decoder.temperature <= 100)) {
    throw Failure(kBadInput, fmt::format("--temperature: {} should be from 0 to 100", options.decoder.temperature));
  }
  if (options.threads == 0) options.threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  if (options.draft == "none") options.decoder.qlen = 1;  // no positions and pages for drafts
  std::vector<std::string> prompts = options.prompts;
  for (const std::string &file : options.prompt_files) prompts.push_back(generate::read_small_file(file));
  if (prompts.empty()) throw Failure(kBadInput, "no prompt: give --prompt or --prompt-file");
  const generate::Weights weights(options.model);
  if (options.draft == "mtp" && !weights.config.has_mtp) {
    throw Failure(kBadInput, fmt::format("--draft: mtp, but {} has no MTP module (num_nextn_predict_layers)", options.model));
  }
  generate::demand_prompts_fit(prompts, options.decoder, weights.config.max_positions);
  options.decoder.num_pages = options.pool_pages ? *options.pool_pages : generate::pages_for_batch(options.decoder, prompts);
  demand_memory(options, weights);

  std::optional<Recorder> recorder;
  if (options.record) recorder.emplace(*options.record, options.record_steps, options.model);
  std::optional<Screen> screen;
  std::optional<Result> without;
  try {
    warm_up(options, weights, prompts);
    if (!options.json) screen.emplace(prompts, options.decoder.max_tokens);
    const Result result = [&] {
      try {
        return generate_texts(options, weights, prompts, screen ? &*screen : nullptr, recorder ? &*recorder : nullptr);
      } catch (...) {
        if (screen) screen->break_off();
        throw;
      }
    }();
    if (!options.no_compare && options.draft != "none") {
      GenerateOptions plain = options;
      plain.draft = "none";
      without = generate_texts(plain, weights, prompts, nullptr, nullptr);
    }
    const std::string differs = without ? difference(result.texts, without->texts) : "";
    if (options.json) {
      const std::vector<std::string> recorded = recorder ? recorder->files() : std::vector<std::string>();
      fmt::print("{}\n", to_json(options, backend.name, prompts, result, without, differs, recorded)
                             .dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("\n\n{}", to_text(options, backend.name, result, without, differs));
      if (recorder) fmt::print("{}", recorder->to_text(result.stats.steps));
    }
    if (differs.empty()) return kOk;
    throw Failure(kCheckFailed, "the text with drafts and the text without differ at " + differs);
  } catch (const error &e) {
    demand_ok(Status(e.status(), e.what()), "");
    throw;
  }
}

}  // namespace

void add_generate(CLI::App &app, int &exit_code) {
  const auto options = std::make_shared<GenerateOptions>();
  DecoderOptions &decoder = options->decoder;
  decoder.max_tokens = 200;
  decoder.max_batch = 8;
  CLI::App &verb = *app.add_subcommand("generate", "Generate text from a model by speculative decoding");
  verb.add_option("--model", options->model, "Folder with config.json and model.safetensors")->required()->type_name("DIR");
  verb.add_option("--prompt", options->prompts, "A text to go on from; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  verb.add_option("--prompt-file", options->prompt_files, "The same, a file each")->type_name("FILE")->allow_extra_args(false);
  verb.add_option("--draft", options->draft, "Who drafts: mtp, ngram or none (mtp)")
      ->check(CLI::IsMember({"mtp", "ngram", "none"}));
  verb.add_option("--qlen", decoder.qlen, "Tokens verified a step: the last one and the drafted ones (4)")
      ->check(CLI::Range(1, 64));
  verb.add_option("--max-tokens", decoder.max_tokens, "Bytes to generate for each prompt (200)")
      ->check(CLI::Range(1, 1'000'000));
  verb.add_option("--temperature", decoder.temperature, "0: always the likeliest byte (0)");
  verb.add_option("--seed", decoder.seed, "Of the choices at a temperature (1)");
  verb.add_option("--batch", decoder.max_batch, "Texts at a time at most (8)")->check(CLI::Range(1, 4096));
  verb.add_option("--page-size", decoder.page_size, "Tokens of a page (64)")->check(CLI::Range(1, 1 << 14));
  verb.add_option("--pool-pages", options->pool_pages, "Pages of the caches (what the texts of a batch need at most)")
      ->check(CLI::Range(1, 1 << 24));
  add_backend_option(verb, options->backend);
  verb.add_option("--threads", options->threads, "CPU threads; 0: one a processor (1)")
      ->check(CLI::Range(0, MLAVERIFY_MAX_THREADS));
  verb.add_flag("--no-compare", options->no_compare, "Do not generate once more without drafts to compare");
  CLI::Option *record = verb.add_option("--record", options->record, "Write the attention of verify steps to step files in DIR")
                            ->type_name("DIR");
  verb.add_option("--record-steps", options->record_steps, "Which steps, from 1 (8)")
      ->delimiter(',')
      ->check(CLI::Range(1, std::numeric_limits<int32_t>::max()))
      ->needs(record);
  verb.add_flag("--json", options->json, "One JSON document instead of text");
  verb.callback([options, &exit_code] { exit_code = run_generate(*options); });
}

}  // namespace mlaverify::cli
