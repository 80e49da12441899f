// The safetensors reader against files that lie, and the step file's round trip.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include "io/safetensors.h"
#include "io/step.h"

namespace mlaverify::io {
namespace {

namespace fs = std::filesystem;

class IoTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mlaverify_io_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string &name = "file.safetensors") const { return (dir_ / name).string(); }

  std::string write(const std::string &bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }

  // The message with which the reader refuses a file of these bytes; "" if it reads it.
  std::string refusal(const std::string &bytes) const {
    try {
      read_safetensors(write(bytes));
    } catch (const FileError &e) {
      const std::string what = e.what();
      EXPECT_EQ(what.find(path() + ": "), 0u) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      EXPECT_LT(what.size(), path().size() + 400) << what;
      return what.substr(path().size() + 2);
    }
    return "";
  }

  fs::path dir_;
};

std::string length(uint64_t n) {
  std::string s(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) s[i] = static_cast<char>(n >> (8 * i));
  return s;
}

// A file with this header and that many data bytes.
std::string file(const std::string &header, std::size_t data_bytes = 0) {
  return length(header.size()) + header + std::string(data_bytes, 'x');
}

// One tensor "t" with this shape and these offsets.
std::string tensor(const std::string &dtype, const std::string &shape, const std::string &offsets, std::size_t data_bytes) {
  return file(R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data_bytes);
}

#define EXPECT_REFUSED(bytes, part) EXPECT_NE(refusal(bytes).find(part), std::string::npos) << "said: " << refusal(bytes)

TEST_F(IoTest, ReadsWhatIsRight) {
  EXPECT_EQ(refusal(file("{}")), "");
  EXPECT_EQ(refusal(file("{}      ")), "");
  EXPECT_EQ(refusal(tensor("F32", "[2]", "[0,8]", 8)), "");
  EXPECT_EQ(refusal(tensor("F32", "[]", "[0,4]", 4)), "");
  EXPECT_EQ(refusal(tensor("F32", "[0,7]", "[0,0]", 0)), "");
  EXPECT_EQ(refusal(tensor("F4", "[4]", "[0,2]", 2)), "");
  // In the order of the offsets, not of the header; a tensor without bytes anywhere.
  EXPECT_EQ(refusal(file(
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},)"
                R"("b":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}})",
                3)),
            "");
}

TEST_F(IoTest, KeepsTypesItDoesNotHoldByNameOnly) {
  const SafetensorsFile f = read_safetensors(write(tensor("I64", "[1]", "[0,8]", 8)));
  EXPECT_TRUE(f.tensors.empty());
  EXPECT_EQ(f.other_tensors.at("t"), "I64");
}

TEST_F(IoTest, CopiesAligned) {
  // The data of "b" start at an odd address in the file.
  const std::string bytes =
      file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})", 5);
  const SafetensorsFile f = read_safetensors(write(bytes));
  const TensorBuffer &b = f.tensors.at("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
  EXPECT_EQ(std::memcmp(b.data(), "xxxx", 4), 0);
}

TEST_F(IoTest, RefusesWhatIsNoFile) {
  const auto says = [](const std::string &p) {
    try {
      read_safetensors(p);
    } catch (const FileError &e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(says(path("none")).find("cannot open"), std::string::npos);
  EXPECT_NE(says(dir_.string()).find("not a regular file"), std::string::npos);
  EXPECT_NE(says("/dev/zero").find("not a regular file"), std::string::npos);
}

TEST_F(IoTest, RefusesTruncation) {
  EXPECT_REFUSED("", "too few");
  EXPECT_REFUSED("1234567", "too few");
  EXPECT_REFUSED(length(3) + "{}", "exceeds the file");
  EXPECT_REFUSED(tensor("F32", "[2]", "[0,8]", 7), "reach past the end");
  // Every prefix of a good file.
  const std::string whole = tensor("F32", "[2]", "[0,8]", 8);
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_NE(refusal(whole.substr(0, n)), "") << n;
}

TEST_F(IoTest, RefusesHeaderLengths) {
  EXPECT_REFUSED(length(100'000'001), "exceeds the limit");
  EXPECT_REFUSED(length(UINT64_MAX) + "{}", "exceeds the limit");
  EXPECT_REFUSED(length(100'000'000) + "{}", "exceeds the file");
}

TEST_F(IoTest, RefusesHeadersThatAreNoObject) {
  EXPECT_REFUSED(file(""), "not valid JSON");
  EXPECT_REFUSED(file("{"), "not valid JSON");
  EXPECT_REFUSED(file("{}{}"), "not valid JSON");
  EXPECT_REFUSED(file("{\"a\xff\":1}"), "not valid JSON");
  for (const char *header : {"[]", "1", "-1", "1.5", "null", "true", "\"x\""})
    EXPECT_REFUSED(file(header), "not a JSON object");
}

TEST_F(IoTest, SurvivesDeepNesting) {
  const std::size_t deep = 5'000'000;
  EXPECT_REFUSED(file(std::string(deep, '[')), "not a JSON object");
  EXPECT_REFUSED(file(R"({"t":)" + std::string(deep, '[')), "should be an object");
  EXPECT_REFUSED(file(R"({"t":{"shape":)" + std::string(deep, '[')), "should be integers");
  std::string objects;
  for (std::size_t i = 0; i < deep / 5; ++i) objects += "{\"a\":";
  EXPECT_REFUSED(file(objects), "unknown field");
}

TEST_F(IoTest, RefusesDuplicates) {
  const std::string t = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_REFUSED(file("{" + t + "," + t + "}", 1), "\"t\" appears twice");
  EXPECT_REFUSED(file(R"({"t":{"dtype":"U8","dtype":"U8"}})"), "\"dtype\" appears twice");
  EXPECT_REFUSED(file(R"({"__metadata__":{"a":"1","a":"2"}})"), "\"a\" appears twice");
  EXPECT_REFUSED(file(R"({"__metadata__":{},"__metadata__":{}})"), "appears twice");
}

TEST_F(IoTest, RefusesFieldsOfTheWrongKind) {
  EXPECT_REFUSED(file(R"({"t":5})"), "should be an object");
  EXPECT_REFUSED(file(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1), "has no dtype");
  EXPECT_REFUSED(file(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), "has no shape");
  EXPECT_REFUSED(file(R"({"t":{"dtype":"U8","shape":[1]}})", 1), "has no data_offsets");
  EXPECT_REFUSED(file(R"({"t":{"dtype":5}})"), "dtype is 5, should be a string");
  EXPECT_REFUSED(file(R"({"t":{"dtype":["U8"]}})"), "dtype is a list");
  EXPECT_REFUSED(file(R"({"t":{"shape":"1"}})"), "shape is \"1\"");
  EXPECT_REFUSED(file(R"({"t":{"shape":{}}})"), "shape is an object");
  EXPECT_REFUSED(file(R"({"t":{"stride":[1]}})"), "unknown field \"stride\"");
  EXPECT_REFUSED(file(R"({"__metadata__":{"a":1}})"), "metadata \"a\" is 1, should be a string");
  EXPECT_REFUSED(file(R"({"__metadata__":{"a":null}})"), "metadata \"a\" is null");
  EXPECT_REFUSED(file(R"({"__metadata__":{"a":{}}})"), "metadata \"a\" is an object");
  EXPECT_REFUSED(file(R"({"__metadata__":[]})"), "should be an object");
}

TEST_F(IoTest, RefusesTypesShapesAndOffsets) {
  EXPECT_REFUSED(tensor("F33", "[1]", "[0,4]", 4), "unknown dtype \"F33\"");
  EXPECT_REFUSED(tensor("f32", "[1]", "[0,4]", 4), "unknown dtype \"f32\"");
  EXPECT_REFUSED(tensor("F32", "[-1]", "[0,4]", 4), "shape has -1");
  EXPECT_REFUSED(tensor("F32", "[1.0]", "[0,4]", 4), "shape has 1.0");
  EXPECT_REFUSED(tensor("F32", "[99999999999999999999]", "[0,4]", 4), "shape has 99999999999999999999");
  EXPECT_REFUSED(tensor("F32", "[0." + std::string(100'000, '9') + "]", "[0,4]", 4), "shape has 0.999");
  EXPECT_REFUSED(tensor("F32", "[" + std::string(100'000, '9') + "]", "[0,4]", 4), "not valid JSON");  // beyond any double
  EXPECT_REFUSED(tensor("F32", "[4294967296,4294967296]", "[0,0]", 0), "not a size");
  EXPECT_REFUSED(tensor("F32", "[0,18446744073709551615]", "[0,0]", 0), "not a size");
  EXPECT_REFUSED(tensor("F4", "[3]", "[0,2]", 2), "not a size");
  EXPECT_REFUSED(tensor("F32", "[4611686018427387904]", "[0,0]", 0), "not a size");
  EXPECT_REFUSED(tensor("F32", "[1000000000000]", "[0,4]", 4), "takes 4000000000000 bytes");
  EXPECT_REFUSED(tensor("F32", "[1]", "[0]", 4), "has 1 numbers");
  EXPECT_REFUSED(tensor("F32", "[1]", "[0,4,4]", 4), "has 3 numbers");
  EXPECT_REFUSED(tensor("F32", "[1]", "[4,0]", 4), "backwards");
  EXPECT_REFUSED(tensor("F32", "[1]", "[-4,0]", 4), "data_offsets has -4");
  EXPECT_REFUSED(tensor("F32", "[1]", "[0,18446744073709551615]", 4), "reach past the end");
  EXPECT_REFUSED(tensor("F32", "[1]", "[0,3]", 4), "takes 4 bytes");
}

#ifndef __SANITIZE_ADDRESS__  // its memory is larger than any limit
// A file without blocks on the disk, whose tensor the process may not have.
TEST_F(IoTest, NamesATensorThatDoesNotFitInMemory) {
  constexpr int64_t bytes = int64_t{1} << 36;
  const std::string header = R"({"large": {"dtype": "BF16", "shape": [262144, 131072], "data_offsets": [0, 68719476736]}})";
  write(length(header.size()) + header);
  fs::resize_file(path(), 8 + header.size() + bytes);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit = {bytes / 2, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  std::string what;
  try {
    read_safetensors(path());
  } catch (const FileError &e) {
    what = e.what();
  } catch (const std::bad_alloc &) {
    what = "not named";
  }
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(what, path() + ": tensor \"large\": its 68719476736 bytes do not fit in memory");
}
#endif

TEST_F(IoTest, RefusesOverlapsAndHoles) {
  const auto two = [](const std::string &a, const std::string &b, std::size_t bytes) {
    return file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a + R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" +
                    b + "}}",
                bytes);
  };
  EXPECT_EQ(refusal(two("[0,4]", "[4,8]", 8)), "");
  EXPECT_REFUSED(two("[0,4]", "[0,4]", 4), "overlaps");
  EXPECT_REFUSED(two("[0,4]", "[3,7]", 7), "overlaps");
  EXPECT_REFUSED(two("[1,5]", "[5,9]", 9), "1 bytes before tensor \"a\"");
  EXPECT_REFUSED(two("[0,4]", "[5,9]", 9), "1 bytes before tensor \"b\"");
  EXPECT_REFUSED(two("[0,4]", "[4,8]", 9), "1 bytes at the end");
  EXPECT_REFUSED(file("{}", 1), "1 bytes at the end");
  EXPECT_REFUSED(
      file(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4),
      "overlaps");
}

TEST_F(IoTest, QuotesNamesFromTheFile) {
  EXPECT_REFUSED(file(R"({"a\n\u001b[31m":5})"), R"("a\n\u001b[31m" is 5)");
  EXPECT_REFUSED(file("{\"" + std::string(100'000, 'n') + "\":5}"), "nnn\"...");
}

TEST_F(IoTest, WritesWhatItReads) {
  TensorBuffer a(DType::bf16, {3});
  TensorBuffer b(DType::i32, {2, 1});
  std::memcpy(a.data(), "abcdef", 6);
  std::memcpy(b.data(), "12345678", 8);
  write_safetensors(path(), {{"a", a.dtype(), a.shape(), a.data()}, {"b", b.dtype(), b.shape(), b.data()}}, {{"k", "v \"\n"}});
  const SafetensorsFile f = read_safetensors(path());
  EXPECT_EQ(f.metadata.at("k"), "v \"\n");
  EXPECT_EQ(f.tensors.at("a").shape(), a.shape());
  EXPECT_EQ(f.tensors.at("b").shape(), b.shape());
  EXPECT_EQ(std::memcmp(f.tensors.at("a").data(), "abcdef", 6), 0);
  EXPECT_EQ(std::memcmp(f.tensors.at("b").data(), "12345678", 8), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1) << "a temporary file was left";
}

TEST_F(IoTest, NeverReplacesWhatIsNoRegularFile) {
  EXPECT_THROW(write_safetensors(dir_.string(), {}, {}), FileError);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_safetensors(path("pipe"), {}, {}), FileError);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_THROW(read_safetensors(path("pipe")), FileError);
  EXPECT_THROW(write_safetensors(path("none/file"), {}, {}), FileError);
}

Step small_step() {
  Step s;
  s.q = TensorBuffer(DType::bf16, {2, 1, 8});
  s.kv_cache = TensorBuffer(DType::f8_e4m3, {1, 4, 1, 8});
  s.block_table = TensorBuffer(DType::i32, {1, 1});
  s.seq_lens = TensorBuffer(DType::i32, {1});
  s.k_scale = TensorBuffer(DType::f32, {});
  s.o = TensorBuffer(DType::bf16, {2, 1, 8});
  for (TensorBuffer *t : {&s.q, &s.kv_cache, &s.block_table, &s.seq_lens, &s.k_scale, &s.o})
    std::memset(t->data(), 1, t->bytes());
  s.qlen = 2;
  s.page_size = 4;
  s.v_head_dim = 8;
  s.num_kv_splits = 3;
  s.note = "a note";
  return s;
}

TEST_F(IoTest, StepRoundTrip) {
  for (float scale : {1 / 24.0f, 0.1f, -1e-40f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
    Step s = small_step();
    s.sm_scale = scale;
    write_step(path(), s);
    const Step r = read_step(path());
    EXPECT_EQ(r.sm_scale, scale);
    EXPECT_EQ(r.qlen, 2);
    EXPECT_EQ(r.page_size, 4);
    EXPECT_EQ(r.v_head_dim, 8);
    EXPECT_EQ(r.num_kv_splits, 3);
    EXPECT_EQ(r.note, "a note");
    EXPECT_EQ(r.kv_cache.dtype(), DType::f8_e4m3);
    EXPECT_EQ(std::memcmp(r.q.data(), s.q.data(), s.q.bytes()), 0);
    EXPECT_FALSE(r.real_seq_lens);
    EXPECT_FALSE(r.lse);
    const mlaverify_verify_args args = r.args();
    EXPECT_EQ(args.q.strides[0], 8);
    EXPECT_EQ(args.k_scale.ndim, 0);
    EXPECT_NE(args.k_scale.data, nullptr);
    EXPECT_EQ(args.real_seq_lens.data, nullptr);
  }
  Step s = small_step();
  s.sm_scale = std::numeric_limits<float>::quiet_NaN();
  write_step(path(), s);
  EXPECT_TRUE(std::isnan(read_step(path()).sm_scale));
}

// Records are bytes in the file, and metadata says what they are.
TEST_F(IoTest, Records) {
  Step s = small_step();
  s.q = TensorBuffer(DType::bf16, {2, 1, 576});
  s.kv_cache = TensorBuffer(DType::f8_ds_mla, {1, 4, 1, 656});
  s.o = TensorBuffer();
  s.v_head_dim = 512;
  for (TensorBuffer *t : {&s.q, &s.kv_cache}) std::memset(t->data(), 1, t->bytes());
  write_step(path(), s);
  EXPECT_EQ(read_safetensors(path()).metadata.at("kv_cache_dtype"), "fp8_ds_mla");
  const Step r = read_step(path());
  EXPECT_EQ(r.kv_cache.dtype(), DType::f8_ds_mla);
  EXPECT_EQ(r.kv_cache.shape(), s.kv_cache.shape());
  EXPECT_EQ(std::memcmp(r.kv_cache.data(), s.kv_cache.data(), s.kv_cache.bytes()), 0);
  const mlaverify_tensor kv = r.args().kv_cache;
  EXPECT_EQ(kv.dtype, MLAVERIFY_F8_DS_MLA);
  EXPECT_EQ(kv.strides[1], 656);

  const auto says = [&](DType dtype, const char *type) {
    std::map<std::string, std::string> metadata = {{"qlen", "2"}, {"page_size", "4"}, {"v_head_dim", "512"}, {"sm_scale", "1"}};
    if (type != nullptr) metadata["kv_cache_dtype"] = type;
    const TensorBuffer cache(dtype, {1, 4, 1, 656});
    write_safetensors(path(),
                      {{"q", s.q.dtype(), s.q.shape(), s.q.data()},
                       {"kv_cache", dtype, cache.shape(), cache.data()},
                       {"block_table", s.block_table.dtype(), s.block_table.shape(), s.block_table.data()},
                       {"seq_lens", s.seq_lens.dtype(), s.seq_lens.shape(), s.seq_lens.data()}},
                      metadata);
    try {
      read_step(path());
    } catch (const FileError &e) {
      return std::string(e.what()).substr(path().size());
    }
    return std::string();
  };
  EXPECT_EQ(says(DType::f8_ds_mla, "fp8_ds_mla"), "");
  EXPECT_EQ(says(DType::bf16, nullptr), "");
  EXPECT_EQ(says(DType::f8_ds_mla, nullptr),
            ": tensor kv_cache is U8, but metadata kv_cache_dtype is missing, should be \"fp8_ds_mla\"");
  EXPECT_EQ(says(DType::bf16, "fp8_ds_mla"),
            ": tensor kv_cache is BF16, should be U8 since metadata kv_cache_dtype is \"fp8_ds_mla\"");
  EXPECT_EQ(says(DType::f8_ds_mla, "fp8"),
            ": metadata kv_cache_dtype is \"fp8\", should be \"fp8_ds_mla\" with a U8 kv_cache, and absent with others");
}

TEST_F(IoTest, StepRefusesMetadata) {
  Step s = small_step();
  const auto says = [&](const char *key, const char *value) {
    std::map<std::string, std::string> metadata = {{"qlen", "2"}, {"page_size", "4"}, {"v_head_dim", "8"}, {"sm_scale", "1"}};
    metadata[key] = value;
    std::vector<TensorRef> tensors;
    tensors.push_back({"q", s.q.dtype(), s.q.shape(), s.q.data()});
    tensors.push_back({"kv_cache", s.kv_cache.dtype(), s.kv_cache.shape(), s.kv_cache.data()});
    tensors.push_back({"block_table", s.block_table.dtype(), s.block_table.shape(), s.block_table.data()});
    tensors.push_back({"seq_lens", s.seq_lens.dtype(), s.seq_lens.shape(), s.seq_lens.data()});
    write_safetensors(path(), tensors, metadata);
    try {
      read_step(path());
    } catch (const FileError &e) {
      return std::string(e.what()).substr(path().size());
    }
    return std::string();
  };
  EXPECT_EQ(says("unknown", "x"), "");
  for (const char *good : {"-5", "0", "2147483647", "-2147483648"}) EXPECT_EQ(says("qlen", good), "") << good;
  for (const char *bad :
       {"", " 2", "2 ", "+2", "2.0", "0x2", "two", "2147483648", "-2147483649", "99999999999999999999", "1e3"}) {
    EXPECT_NE(says("qlen", bad).find("metadata qlen is"), std::string::npos) << bad;
  }
  for (const char *good : {"1", "-0.5", "1e-3", "inf", "-inf", "nan", "0x1p-3", "1e-60"})
    EXPECT_EQ(says("sm_scale", good), "") << good;
  for (const char *bad : {"", " 1", "1 ", "1,5", "abc", "1e999", "1e39", "1.0f", "--1"}) {
    EXPECT_NE(says("sm_scale", bad).find("metadata sm_scale is"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace mlaverify::io
