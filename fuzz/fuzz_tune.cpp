// A tune file of any bytes is refused with a message, or its rows are such as the config table may have, and read back as written.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cuda/tune_file.h"

namespace cuda = mlaverify::cuda;
namespace rules = mlaverify::rules;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, std::size_t size) {
  cuda::TuneFile file;
  const mlaverify::Status s = parse_tune_file(std::string_view(reinterpret_cast<const char *>(data), size), "file", &file);
  if (!s.ok()) {
    if (s.message.rfind("file:", 0) != 0 || s.message.size() > 400) std::abort();
    return 0;
  }
  std::string text = cuda::tune_head(file.card);
  for (const rules::GpuRow &r : file.rows) {
    if (r.rows_from < 0 || r.rows_to < r.rows_from || r.rows_to > rules::kMostRows) std::abort();
    if (r.shares_squared_per_tile < rules::kLeastShares || r.shares_squared_per_tile > rules::kMostShares) std::abort();
    text += cuda::tune_row(r) + "\n";
  }
  cuda::TuneFile again;
  if (!parse_tune_file(text, "file", &again).ok() || again.rows.size() != file.rows.size()) std::abort();
  for (std::size_t i = 0; i < file.rows.size(); ++i) {
    if (!(again.rows[i] == file.rows[i])) std::abort();
  }
  return 0;
}
