// mlaverify: the command line program. One file per verb; this one parses, dispatches and turns failures into exit codes.
#include <cstdio>
#include <exception>

#include "error.h"
#include "io/device_memory.h"
#include "mlaverify/mlaverify.h"
#include "verb.h"

namespace cli = mlaverify::cli;

int main(int argc, char **argv) {
  CLI::App app("Causal MLA verify attention over a paged latent KV cache", "mlaverify");
  app.set_version_flag("--version", mlaverify_version());
  app.require_subcommand(1);
  int exit_code = cli::kOk;
  cli::add_info(app, exit_code);
  cli::add_plan(app, exit_code);
  cli::add_run(app, exit_code);
  cli::add_check(app, exit_code);
  cli::add_bench(app, exit_code);
  cli::add_replay(app, exit_code);
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError &e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::fprintf(stderr, "mlaverify: %s (see mlaverify --help)\n", e.what());
    return cli::kBadInput;
  } catch (const cli::Failure &e) {
    std::fprintf(stderr, "mlaverify: %s\n", e.what());
    return e.exit_code;
  } catch (const mlaverify::io::DeviceError &e) {
    std::fprintf(stderr, "mlaverify: %s\n", e.what());
    return cli::kCannotRun;
  } catch (const std::bad_alloc &) {
    std::fprintf(stderr, "mlaverify: out of memory\n");
    return cli::kBadInput;
  } catch (const std::exception &e) {
    std::fprintf(stderr, "mlaverify: %s\n", e.what());
    return cli::kBadInput;
  }
}
