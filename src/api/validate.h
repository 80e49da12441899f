// Turns the caller's arguments into a Problem, or refuses them. Every argument check of the library stands in validate.cpp.
#pragma once

#include "api/status.h"
#include "mlaverify/mlaverify.h"
#include "rules/problem.h"

namespace mlaverify {

// What the arguments say beside the problem itself.
struct Call {
  Problem problem;
  mlaverify_backend backend;
  mlaverify_device device;  // where the tensors live
  int32_t num_threads;
  mlaverify_parallel_for parallel_for;  // null: OpenMP
  void *parallel_context;
  void *workspace;
  size_t workspace_bytes;
  void *stream;
};

// `need_data`: data pointers are checked too (a size query passes without them). On failure `call` is untouched.
Status validate(const mlaverify_verify_args *args, bool need_data, Call *call);

}  // namespace mlaverify
