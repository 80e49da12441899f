#include "support/test_case.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "io/safetensors.h"

namespace mlaverify::test {
namespace {

// Every field with its name, in one place for printing and reading.
template <class Case, class Visit>
void for_each_field(Case &c, Visit visit) {
  visit("heads", c.heads);
  visit("qlen", c.qlen);
  visit("lk", c.lk);
  visit("lv", c.lv);
  visit("page_size", c.page_size);
  visit("lens", c.lens);
  visit("real_lens", c.real_lens);
  visit("streams", c.streams);
  visit("q_dtype", c.q_dtype);
  visit("kv_dtype", c.kv_dtype);
  visit("k_scale", c.k_scale);
  visit("sm_scale", c.sm_scale);
  visit("q_sigma", c.q_sigma);
  visit("kv_sigma", c.kv_sigma);
  visit("num_kv_splits", c.num_kv_splits);
  visit("flat", c.flat);
  visit("slot_pad", c.slot_pad);
  visit("page_pad", c.page_pad);
  visit("spare_pages", c.spare_pages);
  visit("table_extra", c.table_extra);
  visit("table_pad", c.table_pad);
  visit("q_pad", c.q_pad);
  visit("out_pad", c.out_pad);
  visit("heads_outer", c.heads_outer);
  visit("shift", c.shift);
  visit("seed", c.seed);
}

std::string text_of(int32_t x) { return std::to_string(x); }
std::string text_of(uint64_t x) { return std::to_string(x); }
std::string text_of(bool x) { return x ? "1" : "0"; }
std::string text_of(DType x) { return io::safetensors_name(x); }
std::string text_of(float x) {
  char s[32];
  std::snprintf(s, sizeof s, "%.9g", static_cast<double>(x));
  return s;
}
std::string text_of(const std::optional<float> &x) { return x ? text_of(*x) : ""; }
std::string text_of(const std::vector<int32_t> &x) {
  std::string s;
  for (std::size_t i = 0; i < x.size(); ++i) s += (i > 0 ? "," : "") + std::to_string(x[i]);
  return s;
}

void read(const std::string &s, int32_t &x) { x = std::stoi(s); }
void read(const std::string &s, uint64_t &x) { x = std::stoull(s); }
void read(const std::string &s, bool &x) { x = s == "1"; }
void read(const std::string &s, float &x) { x = std::strtof(s.c_str(), nullptr); }
void read(const std::string &s, std::optional<float> &x) {
  x.reset();
  if (!s.empty()) read(s, x.emplace());
}
void read(const std::string &s, DType &x) {
  for (int32_t t = 0; t <= static_cast<int32_t>(DType::f8_ds_mla); ++t) {
    if (s != io::safetensors_name(static_cast<DType>(t))) continue;
    x = static_cast<DType>(t);
    return;
  }
  throw std::invalid_argument("MLAVERIFY_TEST_CASE: got '" + s + "', which is not a type of a test case");
}
void read(const std::string &s, std::vector<int32_t> &x) {
  x.clear();
  std::istringstream in(s);
  for (std::string item; std::getline(in, item, ',');) x.push_back(std::stoi(item));
}

}  // namespace

std::string to_text(const TestCase &c) {
  std::string text;
  for_each_field(c, [&](const char *name, const auto &value) {
    text += (text.empty() ? "" : " ") + std::string(name) + "=" + text_of(value);
  });
  return text;
}

TestCase from_text(const std::string &text) {
  TestCase c;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const std::size_t equals = word.find('=');
    bool known = false;
    for_each_field(c, [&](const char *name, auto &value) {
      if (equals == std::string::npos || word.substr(0, equals) != name) return;
      known = true;
      read(word.substr(equals + 1), value);
    });
    if (!known) throw std::invalid_argument("MLAVERIFY_TEST_CASE: got '" + word + "', which is not a field of a test case");
  }
  return c;
}

std::string repeat_command(const TestCase &c) {
  const char *isa = std::getenv("MLAVERIFY_CPU_ISA");
  return (isa != nullptr ? "MLAVERIFY_CPU_ISA=" + std::string(isa) + " " : "") + "MLAVERIFY_TEST_CASE='" + to_text(c) +
         "' property_test --gtest_filter=Property.OneCaseFromTheEnvironment";
}

std::ostream &operator<<(std::ostream &out, const TestCase &c) { return out << repeat_command(c); }

}  // namespace mlaverify::test
