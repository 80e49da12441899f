#include "trace.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <sstream>

#include "error.h"

namespace mlaverify::cli {
namespace {

const std::string kHeader = "arrival_ms,input_tokens,output_tokens\n";
const std::string kSessionHeader = "session,arrival_ms,input_tokens,output_tokens\n";

std::vector<TraceRequest> parse(const std::string &text) {
  std::istringstream in(text);
  return parse_trace(in, "t.csv");
}

// The message of the refusal, which must be one line and exit code 2.
std::string fault(const std::string &text) {
  try {
    parse(text);
  } catch (const Failure &e) {
    EXPECT_EQ(e.exit_code, kBadInput);
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(Trace, ReadsRequests) {
  const auto trace = parse(kHeader + "0,6758,500\n12.5,1,0\n1e3,2147483647,2147483647");
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[0].line, 2);
  EXPECT_EQ(trace[0].arrival_ms, 0);
  EXPECT_EQ(trace[0].input_tokens, 6758);
  EXPECT_EQ(trace[0].output_tokens, 500);
  EXPECT_EQ(trace[1].arrival_ms, 12.5);
  EXPECT_EQ(trace[1].output_tokens, 0);
  EXPECT_EQ(trace[2].arrival_ms, 1000);
  EXPECT_EQ(trace[2].input_tokens, 2147483647);
}

TEST(Trace, ReadsSessionsAndCarriageReturns) {
  const auto trace = parse("session,arrival_ms,input_tokens,output_tokens\r\n1,0,10,2\r\nchat b,7,20,3\r\n1,5,30,4\r\n");
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[0].input_tokens, 10);
  EXPECT_EQ(trace[1].input_tokens, 30);
  EXPECT_EQ(trace[1].line, 4);
  EXPECT_EQ(trace[2].input_tokens, 20);
}

RC_GTEST_PROP(Trace, SortsByArrivalAndKeepsTheOrderOfTheFile, ()) {
  const auto arrivals = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5)));
  std::string text = kHeader;
  for (std::size_t i = 0; i < arrivals.size(); ++i) text += std::to_string(arrivals[i]) + "," + std::to_string(i + 1) + ",1\n";
  const auto trace = parse(text);
  RC_ASSERT(trace.size() == arrivals.size());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    RC_ASSERT(trace[i].line == trace[i].input_tokens + 1);
    RC_ASSERT(trace[i].arrival_ms == arrivals[static_cast<std::size_t>(trace[i].line) - 2]);
    if (i == 0) continue;
    RC_ASSERT(trace[i - 1].arrival_ms < trace[i].arrival_ms ||
              (trace[i - 1].arrival_ms == trace[i].arrival_ms && trace[i - 1].line < trace[i].line));
  }
}

TEST(Trace, RefusesAnythingElse) {
  EXPECT_EQ(fault(""), "t.csv: the file is empty; its first line should be arrival_ms,input_tokens,output_tokens");
  EXPECT_EQ(fault(kHeader), "t.csv: no requests after the header");
  EXPECT_EQ(fault("time,in,out\n0,1,1\n"),
            "t.csv:1: the header is 'time,in,out'; it should be arrival_ms,input_tokens,output_tokens or "
            "session,arrival_ms,input_tokens,output_tokens");
  EXPECT_EQ(fault(kHeader + "0,1,1\n\n"), "t.csv:3: '' has 1 field; it should have 3");
  EXPECT_EQ(fault(kHeader + "0,1,1\n5,6\n"), "t.csv:3: '5,6' has 2 fields; it should have 3");
  EXPECT_EQ(fault(kHeader + "0,1,1,1\n"), "t.csv:2: '0,1,1,1' has 4 fields; it should have 3");
  EXPECT_EQ(fault(kSessionHeader + "0,1,1\n"), "t.csv:2: '0,1,1' has 3 fields; it should have 4");
  EXPECT_EQ(fault(kSessionHeader + ",0,1,1\n"), "t.csv:2: session is empty; it should name the request's session");
  for (const std::string arrival : {"", "-1", "nan", "inf", "1e999", "1e13", "5x", " 5", "0x10", "+1", "1,5\"", "\""}) {
    const std::string message = fault(kHeader + arrival + ",1,1\n");
    EXPECT_EQ(message.rfind("t.csv:2: ", 0), 0u) << message;
  }
  EXPECT_EQ(fault(kHeader + "soon,1,1\n"), "t.csv:2: arrival_ms is 'soon'; it should be a number from 0 to 1000000000000");
  for (const std::string tokens : {"", "-1", "2147483648", "99999999999999999999", "1.5", "1e3", "x", " 1", "1 ", "0x1"}) {
    const std::string input = fault(kHeader + "0," + tokens + ",1\n");
    EXPECT_EQ(input, "t.csv:2: input_tokens is '" + tokens + "'; it should be a whole number from 1 to 2147483647");
    const std::string output = fault(kHeader + "0,1," + tokens + "\n");
    EXPECT_EQ(output, "t.csv:2: output_tokens is '" + tokens + "'; it should be a whole number from 0 to 2147483647");
  }
  EXPECT_EQ(fault(kHeader + "0,0,1\n"), "t.csv:2: input_tokens is '0'; it should be a whole number from 1 to 2147483647");
  EXPECT_EQ(fault(kHeader + "0,1,1\n" + std::string(5000, '7')), "t.csv:3: the line is longer than 1024 bytes");
}

TEST(Trace, ShowsForeignTextPrintableAndShort) {
  EXPECT_EQ(fault(kHeader + std::string("a\0\x1b[1m\xff", 7) + ",1,1\n"),
            "t.csv:2: arrival_ms is 'a??[1m?'; it should be a number from 0 to 1000000000000");
  const std::string message = fault(kHeader + std::string(1000, 'x') + "\n");
  EXPECT_LT(message.size(), 120u) << message;
}

RC_GTEST_PROP(Trace, NeverCrashesOnBytes, (const std::string &bytes)) {
  try {
    parse(kHeader + bytes);
  } catch (const Failure &e) {
    RC_ASSERT(e.exit_code == kBadInput);
  }
}

TEST(Trace, RefusesPathsThatAreNoFile) {
  EXPECT_THROW(read_trace("/no/such/trace.csv"), Failure);
  EXPECT_THROW(read_trace("/"), Failure);
}

}  // namespace
}  // namespace mlaverify::cli
