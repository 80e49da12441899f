// A trace of any bytes is refused with a message, or its requests are what the format promises.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "error.h"
#include "trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char *>(data), size));
  try {
    double before = 0;
    for (const mlaverify::cli::TraceRequest &r : mlaverify::cli::parse_trace(in, "trace")) {
      if (!(r.arrival_ms >= before) || r.input_tokens < 1 || r.output_tokens < 0 || r.line < 2) std::abort();
      before = r.arrival_ms;
    }
  } catch (const mlaverify::cli::Failure &failure) {
    if (std::string(failure.what()).rfind("trace", 0) != 0) std::abort();
  }
  return 0;
}
