// Tune files: what is read, each kind of fault with its line, and whose card a file is. Needs no GPU.
#include "cuda/tune_file.h"

#include <gtest/gtest.h>

#include <string>

#include "mlaverify/mlaverify.h"

namespace mlaverify::cuda {
namespace {

using rules::Arch;
using rules::GpuKernel;
using rules::GpuRow;
using rules::PageClass;
using rules::TypeClass;

const TuneCard kH200 = {"NVIDIA H200", "9.0", Arch::sm_90, 132};
const std::string kRow = "row rows=17..64 types=same_16_bit pages=boxes kernel=hopper shares=64";

std::string good_text() { return tune_head(kH200) + kRow + "\n"; }

// Replaces the first `what` of the good text.
std::string changed(const std::string &what, const std::string &by) {
  std::string text = good_text();
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

void expect_fault(const std::string &text, const std::string &message) {
  TuneFile file;
  const Status s = parse_tune_file(text, "f", &file);
  EXPECT_EQ(s.code, MLAVERIFY_ERR_INVALID_ARGUMENT) << text;
  EXPECT_EQ(s.message, message);
  EXPECT_TRUE(file.rows.empty());
}

TEST(TuneFile, ReadsWhatItWrites) {
  const GpuRow rows[] = {{Arch::sm_90, 17, 64, TypeClass::same_16_bit, PageClass::boxes, GpuKernel::hopper, 64},
                         {Arch::sm_90, 0, rules::kMostRows, TypeClass::any, PageClass::any, GpuKernel::generic, 4},
                         {Arch::sm_90, 5, 5, TypeClass::fp8_cache, PageClass::gathered, GpuKernel::portable_16, 4096},
                         {Arch::sm_90, 5, 6, TypeClass::other, PageClass::any, GpuKernel::portable_64, 7}};
  std::string text = tune_head(kH200);
  for (const GpuRow &row : rows) text += tune_row(row) + "  # 1.07 times as fast\n";
  TuneFile file;
  const Status s = parse_tune_file(text, "f", &file);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(file.card.name, kH200.name);
  EXPECT_EQ(file.card.compute_capability, "9.0");
  EXPECT_EQ(file.card.arch, Arch::sm_90);
  EXPECT_EQ(file.card.multiprocessors, 132);
  ASSERT_EQ(file.rows.size(), std::size(rows));
  for (std::size_t i = 0; i < file.rows.size(); ++i) EXPECT_TRUE(file.rows[i] == rows[i]) << tune_row(file.rows[i]);
}

TEST(TuneFile, BlanksCommentsAndNoRows) {
  TuneFile file;
  EXPECT_TRUE(parse_tune_file(tune_head(kH200), "f", &file).ok());
  EXPECT_TRUE(file.rows.empty());
  const std::string text = changed(kRow, "\n # a comment\r\n\t" + kRow + "\t# more\r\n");
  EXPECT_TRUE(parse_tune_file(text.substr(0, text.size() - 1), "f", &file).ok());
  EXPECT_EQ(file.rows.size(), 1U);
}

TEST(TuneFile, Head) {
  expect_fault("", "f:1: got '', must be 'mlaverify-tune 1'");
  expect_fault(changed("mlaverify-tune 1", "mlaverify-tune 2"), "f:1: got 'mlaverify-tune 2', must be 'mlaverify-tune 1'");
  expect_fault(std::string("\x7f"
                           "ELF\0",
                           5),
               "f:1: got '?ELF?', must be 'mlaverify-tune 1'");
  expect_fault(std::string(1000, 'x'), "f:1: got '" + std::string(60, 'x') + "...', must be 'mlaverify-tune 1'");
  const std::string version = mlaverify_version();
  expect_fault(changed("library " + version, "library 0.0.9"),
               "f:2: library: got '0.0.9', must be '" + version + "', this version: tune again");
  expect_fault(changed("card NVIDIA H200\n", ""), "f:3: got 'compute-capability 9.0', must be 'card' and its value");
  expect_fault(changed("card NVIDIA H200", "card  "), "f:3: got 'card', must be 'card' and its value");
  expect_fault(changed("arch sm_90", "arch sm_91"),
               "f:5: arch: got 'sm_91', must be that of a CUDA GPU: sm_80, sm_86, sm_90 or sm_100");
  expect_fault(changed("arch sm_90", "arch cpu"),
               "f:5: arch: got 'cpu', must be that of a CUDA GPU: sm_80, sm_86, sm_90 or sm_100");
  expect_fault(changed("multiprocessors 132", "multiprocessors 0"),
               "f:6: multiprocessors: got '0', must be a whole number from 1");
  expect_fault("mlaverify-tune 1\nlibrary " + version + "\ncard A\n",
               "f:3: got '', must be 'compute-capability' and its value");
}

TEST(TuneFile, Rows) {
  expect_fault(changed("row rows", "rom rows"), "f:7: got 'rom', must be 'row'");
  const std::string rows = ", must be rows=FROM..TO, whole numbers from 0 to 2147483647 in order";
  expect_fault(changed("rows=17..64", "rows=64..17"), "f:7: rows: got '64..17'" + rows);
  expect_fault(changed("rows=17..64", "rows=17"), "f:7: rows: got '17'" + rows);
  expect_fault(changed("rows=17..64", "rows=-1..64"), "f:7: rows: got '-1..64'" + rows);
  expect_fault(changed("rows=17..64", "rows=1..2147483648"), "f:7: rows: got '1..2147483648'" + rows);
  expect_fault(changed("rows=17..64", "17..64"), "f:7: rows: got '17..64'" + rows);
  expect_fault(changed("types=same_16_bit", "types=int8"),
               "f:7: types: got 'int8', must be types=any, same_16_bit, fp8_cache, record_cache or other");
  expect_fault(changed("pages=boxes", "pages=64"), "f:7: pages: got '64', must be pages=any, boxes or gathered");
  expect_fault(changed("kernel=hopper", "kernel=hopper2"),
               "f:7: kernel: got 'hopper2', must be kernel=hopper, hopper_fp8_64, hopper_fp8_32, hopper_fp8_16, portable_64, "
               "portable_16 or generic");
  const std::string shares = ", must be shares=N, a whole number from 4 to 4096";
  expect_fault(changed("shares=64", "shares=3"), "f:7: shares: got '3'" + shares);
  expect_fault(changed("shares=64", "shares=4097"), "f:7: shares: got '4097'" + shares);
  expect_fault(changed("shares=64", "shares=99999999999999999999"), "f:7: shares: got '99999999999999999999'" + shares);
  expect_fault(changed("shares=64", "shares=6x"), "f:7: shares: got '6x'" + shares);
  expect_fault(changed(" shares=64", ""), "f:7: shares: got ''" + shares);
  expect_fault(changed("shares=64", "shares=64 shares=8"),
               "f:7: got 'shares=8' behind a row, must be nothing or a comment after '#'");
  expect_fault(good_text() + "\n# fine so far\nrow", "f:10: rows: got ''" + rows);
}

TEST(TuneFile, IsForOneCard) {
  TuneFile file;
  ASSERT_TRUE(parse_tune_file(good_text(), "f", &file).ok());
  EXPECT_TRUE(check_card(file, kH200).ok());
  EXPECT_TRUE(check_card(file, Arch::sm_90, 132).ok());
  const auto fault = [&](const TuneCard &here) {
    const Status s = check_card(file, here);
    EXPECT_EQ(s.code, MLAVERIFY_ERR_INVALID_ARGUMENT);
    return s.message;
  };
  EXPECT_EQ(fault({"NVIDIA H100", "9.0", Arch::sm_90, 132}),
            "f:3: card: got 'NVIDIA H200', must be 'NVIDIA H100', the GPU's: tune on this one");
  EXPECT_EQ(fault({"NVIDIA H200", "9.1", Arch::sm_90, 132}),
            "f:4: compute-capability: got '9.0', must be '9.1', the GPU's: tune on this one");
  EXPECT_EQ(fault({"NVIDIA H200", "9.0", Arch::sm_100, 132}),
            "f:5: arch: got 'sm_90', must be 'sm_100', the GPU's: tune on this one");
  EXPECT_EQ(fault({"NVIDIA H200", "9.0", Arch::sm_90, 60}),
            "f:6: multiprocessors: got '132', must be '60', the GPU's: tune on this one");
  EXPECT_EQ(check_card(file, Arch::sm_80, 132).code, MLAVERIFY_ERR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace mlaverify::cuda
