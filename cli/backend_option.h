// The --backend option, and what the library's statuses mean for the exit code: shared by all verbs.
#pragma once

#include <string>
#include <vector>

#include "api/status.h"
#include "mlaverify/mlaverify.h"
#include "verb.h"

namespace mlaverify::cli {

// The library's list, in order of preference, unavailable ones included.
std::vector<mlaverify_backend_info> backends();

// Adds `--backend auto|cpu|...`; `backend` must outlive the parse.
void add_backend_option(CLI::App &verb, mlaverify_backend &backend);

// Throws Failure with the exit code for `status` and the library's last message, after "`context`: " unless that is empty. Does
// nothing for MLAVERIFY_OK; throws io::DeviceError where the device failed. To be called right after the call that failed, on its thread.
void demand_ok(mlaverify_status status, const std::string &context);
void demand_ok(const Status &status, const std::string &context);  // of a function behind the interface

// The backend for the tensors that a verb brings along: the one asked for, else the one that MLAVERIFY_BACKEND names, else the
// first that can run here. Throws Failure with the reason if it cannot run here (exit code 3) or the variable is wrong (2).
mlaverify_backend_info chosen_backend(mlaverify_backend asked);

// Throws Failure (exit code 2) where MLAVERIFY_BACKEND names no backend, or a backend refuses what its own variable says
// (MLAVERIFY_CPU_ISA, MLAVERIFY_TUNE_FILE); with exit code 3 where this CPU has not the instruction set of MLAVERIFY_CPU_ISA.
void demand_sound_environment();

// Throws Failure (exit code 3) with the reason if `backend` cannot run on this machine.
void demand_available(mlaverify_backend backend);

}  // namespace mlaverify::cli
