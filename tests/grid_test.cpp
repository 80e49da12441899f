// Grids of shapes: the syntax, the faults with their places, and that what bench prints is read back.
#include "grid.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "builtin_grids.h"
#include "error.h"
#include "rules/number.h"

namespace mlaverify::cli {
namespace {

void expect_same(const Shape &a, const Shape &b) {
  EXPECT_EQ(a.num_heads, b.num_heads);
  EXPECT_EQ(a.qlen, b.qlen);
  EXPECT_EQ(a.qk_dim, b.qk_dim);
  EXPECT_EQ(a.v_dim, b.v_dim);
  EXPECT_EQ(a.page_size, b.page_size);
  EXPECT_EQ(a.q_dtype, b.q_dtype);
  EXPECT_EQ(a.kv_dtype, b.kv_dtype);
  EXPECT_EQ(a.seq_lens, b.seq_lens);
}

// The message of the Failure that `f` must throw, with exit code 2.
template <class F>
std::string failure_of(F f) {
  try {
    f();
  } catch (const Failure &e) {
    EXPECT_EQ(e.exit_code, kBadInput);
    const std::string message = e.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string grid_failure(std::string_view text) {
  return failure_of([&] { parse_grid(text, "grid.txt"); });
}

TEST(Grid, ReadsShapesCommentsAndBlankLines) {
  const auto shapes =
      parse_grid("# a comment\n\n--heads 5 --qlen 3 --batch 2 --seq-len 100 # another\r\n\t --seq-len 7,8,9", "x");
  ASSERT_EQ(shapes.size(), 2u);
  Shape first;
  first.num_heads = 5;
  first.qlen = 3;
  first.seq_lens = {100, 100};
  expect_same(shapes[0], first);
  Shape second;
  second.seq_lens = {7, 8, 9};
  expect_same(shapes[1], second);
}

TEST(Grid, ReadsEveryOption) {
  const Shape s = parse_grid(
      "--heads 1 --qlen 65536 --batch 1 --seq-len 2147483647 --page-size 1 --dtype f32 --kv-dtype f8_e5m2 "
      "--lk 1024 --lv 8",
      "x")[0];
  EXPECT_EQ(s.num_heads, 1);
  EXPECT_EQ(s.qlen, 65536);
  EXPECT_EQ(s.seq_lens, std::vector<int32_t>{2147483647});
  EXPECT_EQ(s.page_size, 1);
  EXPECT_EQ(s.q_dtype, DType::f32);
  EXPECT_EQ(s.kv_dtype, DType::f8_e5m2);
  EXPECT_EQ(s.qk_dim, 1024);
  EXPECT_EQ(s.v_dim, 8);
}

TEST(Grid, BuiltInGridsAreReadAndPrintedBack) {
  ASSERT_GE(builtin_grids().size(), 2u);
  for (const BuiltinGrid &g : builtin_grids()) {
    SCOPED_TRACE(std::string(g.name));
    for (const Shape &s : load_grid(std::string(g.name))) {
      SCOPED_TRACE(shape_line(s));
      const auto again = parse_grid(shape_line(s), "x");
      ASSERT_EQ(again.size(), 1u);
      expect_same(again[0], s);
    }
  }
}

TEST(Grid, CpuGridHasItsShapes) {
  const auto shapes = load_grid("cpu");
  ASSERT_EQ(shapes.size(), 24u);
  EXPECT_EQ(shape_line(shapes.front()), "--heads 16 --qlen 1 --batch 1 --seq-len 2048");
  EXPECT_EQ(shape_line(shapes.back()), "--heads 128 --qlen 8 --batch 8 --seq-len 1024");
}

TEST(Grid, FaultsAreNamedWithTheirPlace) {
  const struct {
    const char *text;
    const char *message;
  } cases[] = {
      {"--seq-len 5\n--heads 0 --seq-len 5", "grid.txt:2: --heads: \"0\" should be a whole number from 1 to 65536"},
      {"--heads 1.5 --seq-len 5", "grid.txt:1: --heads: \"1.5\" should be a whole number from 1 to 65536"},
      {"--heads 99999999999999999999 --seq-len 5",
       "grid.txt:1: --heads: \"99999999999999999999\" should be a whole number from 1 to 65536"},
      {"--qlen -1 --seq-len 5", "grid.txt:1: --qlen: \"-1\" should be a whole number from 1 to 65536"},
      {"--batch 1048577 --seq-len 5", "grid.txt:1: --batch: \"1048577\" should be a whole number from 1 to 1048576"},
      {"--seq-len 5,,6", "grid.txt:1: --seq-len: \"\" should be a whole number from 1 to 2147483647"},
      {"--seq-len 5,", "grid.txt:1: --seq-len: \"\" should be a whole number from 1 to 2147483647"},
      {"--seq-len 2147483648", "grid.txt:1: --seq-len: \"2147483648\" should be a whole number from 1 to 2147483647"},
      {"--page-size 0 --seq-len 5", "grid.txt:1: --page-size: \"0\" should be a whole number from 1 to 2147483647"},
      {"--dtype f8_e4m3 --seq-len 5", "grid.txt:1: --dtype: \"f8_e4m3\" should be one of bf16 f16 f32"},
      {"--kv-dtype int8 --seq-len 5",
       "grid.txt:1: --kv-dtype: \"int8\" should be one of bf16 f16 f32 f8_e4m3 f8_e5m2 f8_ds_mla"},
      {"--kv-dtype f8_ds_mla --lk 512 --seq-len 5", "grid.txt:1: --lk: \"512\" should be 576 with --kv-dtype f8_ds_mla"},
      {"--kv-dtype f8_ds_mla --lv 256 --seq-len 5", "grid.txt:1: --lv: \"256\" should be 512 with --kv-dtype f8_ds_mla"},
      {"--lk 577 --seq-len 5", "grid.txt:1: --lk: \"577\" should be a multiple of 8"},
      {"--lk 1032 --seq-len 5", "grid.txt:1: --lk: \"1032\" should be a whole number from 8 to 1024"},
      {"--lk 256 --seq-len 5", "grid.txt:1: --lv: \"512\" should be at most --lk, 256"},
      {"--batch 3 --seq-len 5,6", "grid.txt:1: --batch: \"3\" should be 2, as many as --seq-len has"},
      {"\n\n--heads 4", "grid.txt:3: --seq-len is missing"},
      {"--seq-len", "grid.txt:1: --seq-len: its value is missing"},
      {"--seq-len 5 --seq-len 6", "grid.txt:1: --seq-len is given twice"},
      {"heads 5", "grid.txt:1: \"heads\" is no option of a shape (for example --heads 16 --qlen 4 --seq-len 4096)"},
      {"--head 5", "grid.txt:1: \"--head\" is no option of a shape (for example --heads 16 --qlen 4 --seq-len 4096)"},
      {"", "grid.txt: no shape in it"},
      {"# nothing\n\n", "grid.txt: no shape in it"},
  };
  for (const auto &c : cases) EXPECT_EQ(grid_failure(c.text), c.message) << c.text;
}

TEST(Grid, HostileTextEndsInOneShortLine) {
  const std::string zeros(1000, '\0');
  EXPECT_LT(grid_failure(zeros).size(), 600u);
  EXPECT_LT(grid_failure("--heads \x1b[2J\xff --seq-len 5").size(), 200u);
  EXPECT_EQ(grid_failure("--heads \x1b[2J --seq-len 5").find('\x1b'), std::string::npos);
  EXPECT_LT(grid_failure("--seq-len " + std::string(100000, '9')).size(), 200u);
  // Requests are bounded over the whole grid, not line by line.
  std::string many;
  for (int i = 0; i < 100; ++i) many += "--batch 1048576 --seq-len 1\n";
  EXPECT_EQ(grid_failure(many), "grid.txt:2: more than 1048576 requests in this and the shapes before it");
}

// 16 and 128 heads x 1, 2, 4 and 8 query tokens at the batches and lengths of the grid h200, each once.
TEST(Grid, Fp8ShapesHaveTheBatchesOfTheOtherGrid) {
  std::set<std::vector<int32_t>> batches;
  for (const Shape &s : load_grid("h200")) {
    if (s.num_heads == 16 && s.qlen == 1 && s.kv_dtype == DType::bf16) batches.insert(s.seq_lens);
  }
  std::set<std::tuple<int32_t, int32_t, std::vector<int32_t>>> shapes;
  for (const Shape &s : load_grid("h200-fp8")) {
    EXPECT_EQ(s.kv_dtype, DType::f8_e4m3) << shape_line(s);
    EXPECT_EQ(batches.count(s.seq_lens), 1u) << shape_line(s);
    EXPECT_TRUE(s.num_heads == 16 || s.num_heads == 128) << shape_line(s);
    EXPECT_TRUE(shapes.insert({s.num_heads, s.qlen, s.seq_lens}).second) << "twice: " << shape_line(s);
  }
  EXPECT_EQ(shapes.size(), 8 * batches.size());
}

TEST(Grid, FilesAreReadAndRefused) {
  const auto dir = std::filesystem::temp_directory_path() / "mlaverify_grid_test";
  std::filesystem::create_directories(dir);
  const std::string path = (dir / "mine.txt").string();
  std::ofstream(path) << "--seq-len 42\n";
  EXPECT_EQ(load_grid(path).at(0).seq_lens, std::vector<int32_t>{42});

  std::ofstream(path) << std::string((1 << 20) + 1, '#');
  EXPECT_EQ(failure_of([&] { load_grid(path); }), path + ": longer than a grid may be (1 MiB)");
  EXPECT_EQ(failure_of([&] { load_grid(dir.string()); }), dir.string() + ": not a plain file");
  std::filesystem::remove_all(dir);
  EXPECT_EQ(failure_of([&] { load_grid("none.txt"); }),
            "--grid: \"none.txt\" is neither a built-in grid (cpu, h200-fp8, h200-users, h200, smoke) nor a file");
}

TEST(Grid, ChangeShapeKeepsWhatIsNotNamed) {
  const Shape s = change_shape(load_grid("cpu")[4], {{"kv-dtype", "f16"}, {"page-size", "1"}});
  EXPECT_EQ(shape_line(s), "--heads 16 --qlen 4 --batch 1 --seq-len 2048 --page-size 1 --kv-dtype f16");
}

}  // namespace
}  // namespace mlaverify::cli
