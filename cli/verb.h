// The verbs of the command line program, one file each. A verb adds its subcommand to the app; its callback leaves the exit
// code.
#pragma once

#include <CLI/CLI.hpp>

namespace mlaverify::cli {

// Exit codes of the program.
constexpr int kOk = 0;
constexpr int kCheckFailed = 1;
constexpr int kBadInput = 2;   // bad usage or bad input: one line on standard error
constexpr int kCannotRun = 3;  // a backend that was asked for cannot run here

void add_info(CLI::App &app, int &exit_code);
void add_plan(CLI::App &app, int &exit_code);
void add_run(CLI::App &app, int &exit_code);
void add_check(CLI::App &app, int &exit_code);
void add_bench(CLI::App &app, int &exit_code);
void add_tune(CLI::App &app, int &exit_code);
void add_replay(CLI::App &app, int &exit_code);
void add_generate(CLI::App &app, int &exit_code);

}  // namespace mlaverify::cli
