#include "kvstore/service/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

namespace kvmesh {
namespace {

using ::testing::EndsWith;
using ::testing::MatchesRegex;

const absl::Time kTime = absl::FromUnixMicros(1'717'243'200'123'456);

std::string Value(const std::string& value) { return FormatLogLine(kTime, LogLevel::kInfo, "c", "m", {{"k", value}}); }

TEST(LogTest, LineIsGolden) {
  EXPECT_EQ(FormatLogLine(kTime, LogLevel::kWarning, "worker", "fetch failed",
                          {{"peer", "10.0.0.1:50052"}, {"blocks", 16}, {"rate", 0.5}}),
            "time=2024-06-01T12:00:00.123456Z level=warning component=worker msg=\"fetch failed\" "
            "peer=10.0.0.1:50052 blocks=16 rate=0.5\n");
}

TEST(LogTest, LevelsHaveNames) {
  EXPECT_THAT(FormatLogLine(kTime, LogLevel::kDebug, "c", "m", {}), EndsWith(" level=debug component=c msg=m\n"));
  EXPECT_THAT(FormatLogLine(kTime, LogLevel::kInfo, "c", "m", {}), EndsWith(" level=info component=c msg=m\n"));
  EXPECT_THAT(FormatLogLine(kTime, LogLevel::kError, "c", "m", {}), EndsWith(" level=error component=c msg=m\n"));
}

TEST(LogTest, ValuesThatAreNotPlainAreQuoted) {
  EXPECT_THAT(Value(""), EndsWith(" k=\"\"\n"));
  EXPECT_THAT(Value("a b"), EndsWith(" k=\"a b\"\n"));
  EXPECT_THAT(Value("a=b"), EndsWith(" k=\"a=b\"\n"));
  EXPECT_THAT(Value("say \"hi\" \\"), EndsWith(" k=\"say \\\"hi\\\" \\\\\"\n"));
  EXPECT_THAT(Value("two\r\nlines\tand level=error"), EndsWith(" k=\"two\\r\\nlines\\tand level=error\"\n"));
  EXPECT_THAT(Value("\x1b[31m\xff"), EndsWith(" k=\"\\x1b[31m\\xff\"\n"));
}

TEST(LogTest, LongValuesAreCut) {
  const std::string line = Value(std::string(10 * kMaxLogValueBytes, 'x'));
  EXPECT_LT(line.size(), kMaxLogValueBytes + 100);
  EXPECT_THAT(line, EndsWith("x...\"\n"));
}

TEST(LogTest, ThreadsWriteWholeLines) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int k = 0; k < 100; ++k) Log(LogLevel::kInfo, "test", "line", {{"thread", i}, {"k", k}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = absl::StrSplit(testing::internal::GetCapturedStderr(), '\n');
  ASSERT_EQ(lines.size(), 401u);
  for (size_t i = 0; i < 400; ++i) {
    EXPECT_THAT(lines[i], MatchesRegex("time=20[0-9T:.-]+Z level=info component=test msg=line thread=[0-3] k=[0-9]+"));
  }
}

TEST(LogTest, EventsBelowTheMinimumAreDropped) {
  testing::internal::CaptureStderr();
  Log(LogLevel::kDebug, "test", "dropped");
  SetMinLogLevel(LogLevel::kError);
  Log(LogLevel::kWarning, "test", "dropped");
  Log(LogLevel::kError, "test", "kept");
  SetMinLogLevel(LogLevel::kInfo);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), MatchesRegex("[^\n]*msg=kept\n"));
}

}  // namespace
}  // namespace kvmesh
