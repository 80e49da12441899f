// Tune files: rows of the config table that were measured on one card, for MLAVERIFY_TUNE_FILE. `mlaverify tune` writes them;
// docs/cli.md describes them. Nothing here needs CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/status.h"
#include "rules/config_table.h"

namespace mlaverify::cuda {

// The card that rows were measured on.
struct TuneCard {
  std::string name;
  std::string compute_capability;  // "9.0"
  rules::Arch arch = rules::Arch::sm_90;
  int32_t multiprocessors = 0;
};

struct TuneFile {
  std::string source;  // stands in front of messages
  TuneCard card;
  int32_t card_line = 0;  // of its first line; the three others follow on it
  std::vector<rules::GpuRow> rows;
};

// The text of a file's head, all its lines, and of a row, without the end of the line.
std::string tune_head(const TuneCard &card);
std::string tune_row(const rules::GpuRow &row);

// INVALID_ARGUMENT, "source:line: what it was, what it should be", for anything but a file of this format by this version of the
// library.
Status parse_tune_file(std::string_view text, const std::string &source, TuneFile *file);

// INVALID_ARGUMENT where the file is not for that card; the second one for a GPU that is not here, of which no more is known.
Status check_card(const TuneFile &file, const TuneCard &here);
Status check_card(const TuneFile &file, rules::Arch arch, int32_t multiprocessors);

// The file that MLAVERIFY_TUNE_FILE names, read once per process. Not set: no rows.
struct TuneSetting {
  bool set = false;
  Status status;
  TuneFile file;

  rules::GpuRows rows() const { return {file.rows.data(), file.rows.size()}; }
};
const TuneSetting &tune_setting();

}  // namespace mlaverify::cuda
