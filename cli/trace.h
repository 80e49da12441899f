// A trace of serving requests: when each arrived, how long its prompt and its answer were (docs/replay.md has the format).
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace mlaverify::cli {

struct TraceRequest {
  int64_t line;           // line of the file, from 1: the request's name in messages
  double arrival_ms;      // >= 0
  int32_t input_tokens;   // >= 1
  int32_t output_tokens;  // >= 0
};

// The requests of a CSV file in order of arrival; those that arrive together stay in the order of the file. The header is
// `arrival_ms,input_tokens,output_tokens`, with an optional leading `session` column: any text without a comma, arrivals then
// count from the start of that session, and all sessions start together. Throws Failure (exit code 2) with `name`, the line
// and the fault for anything else, and for a trace without requests.
std::vector<TraceRequest> parse_trace(std::istream &in, const std::string &name);

std::vector<TraceRequest> read_trace(const std::string &path);

}  // namespace mlaverify::cli
