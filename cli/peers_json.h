// The text of bench/h200.json, compiled in so that the program finds it wherever it runs. Generated from peers_json.cpp.in.
#pragma once

namespace mlaverify::cli {

const char *peers_json();

}  // namespace mlaverify::cli
