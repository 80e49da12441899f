// mlaverify: the command line program. One file per verb; this one parses, dispatches and turns failures into exit codes.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "error.h"
#include "io/device_memory.h"
#include "mlaverify/mlaverify.h"
#include "number_check.h"
#include "verb.h"

namespace cli = mlaverify::cli;

// A full disk or a closed pipe must not look like success.
static void demand_output_written() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw cli::Failure(cli::kBadInput, std::string("standard output: cannot write: ") + std::strerror(errno));
  }
}

// CLI11 would take the next argument, be it another option, for the value of `--name=`.
static void demand_values(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.size() > 3 && argument.compare(0, 2, "--") == 0 && argument.find('=') == argument.size() - 1) {
      throw cli::Failure(cli::kBadInput, argument + " has no value, must be --name=VALUE or --name VALUE");
    }
  }
}

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
  cli::add_tune(app, exit_code);
  cli::add_replay(app, exit_code);
  cli::add_generate(app, exit_code);
  cli::demand_decimal_numbers(app);
  try {
    demand_values(argc, argv);
    app.parse(argc, argv);
    demand_output_written();
    return exit_code;
  } catch (const CLI::ParseError &e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      return std::fflush(stdout) == 0 && std::cout.flush() ? cli::kOk : cli::kBadInput;
    }
    cli::print_error(e.what(), " (see mlaverify --help)");
    return cli::kBadInput;
  } catch (const cli::Failure &e) {
    cli::print_error(e.what());
    return e.exit_code;
  } catch (const mlaverify::io::DeviceError &e) {
    cli::print_error(e.what());
    return cli::kCannotRun;
  } catch (const std::bad_alloc &) {
    cli::print_error("out of memory");
    return cli::kBadInput;
  } catch (const std::exception &e) {
    cli::print_error(e.what());
    return cli::kBadInput;
  }
}
