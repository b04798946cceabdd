#include "client/cli/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace kvmesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<TraceRequest>> Read(const std::string& text) {
    std::ofstream(folder_ / "trace") << text;
    return ReadMooncakeTrace(folder_ / "trace");
  }
  TempDir folder_;
};

TEST_F(TraceTest, RequestsComeInFileOrder) {
  const absl::StatusOr<std::vector<TraceRequest>> trace = Read(
      "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [3, 4]}\n"
      "\n"
      "{\"hash_ids\": [], \"timestamp\": 2, \"output_length\": 0, \"unknown\": null}");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].timestamp_ms, 5);
  EXPECT_EQ((*trace)[0].output_tokens, 7u);
  EXPECT_THAT((*trace)[0].hash_ids, ElementsAre(3, 4));
  EXPECT_TRUE((*trace)[1].hash_ids.empty());
}

TEST_F(TraceTest, AMalformedLineIsNamedWithItsField) {
  const std::string good = "{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [0]}\n";
  const auto fault = [&](const std::string& line) { return std::string(Read(good + "\n" + line).status().message()); };
  EXPECT_THAT(fault("not json"), HasSubstr(folder_ / "trace" + " line 3: not a JSON object"));
  EXPECT_THAT(fault("[1]"), HasSubstr("line 3: not a JSON object"));
  EXPECT_THAT(fault("{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [0]"), HasSubstr("line 3"));
  EXPECT_THAT(fault("{\"output_length\": 1, \"hash_ids\": [0]}"), HasSubstr("line 3: timestamp"));
  EXPECT_THAT(fault("{\"timestamp\": -1, \"output_length\": 1, \"hash_ids\": [0]}"), HasSubstr("line 3: timestamp"));
  EXPECT_THAT(fault("{\"timestamp\": 0, \"output_length\": \"1\", \"hash_ids\": [0]}"), HasSubstr("output_length"));
  EXPECT_THAT(fault("{\"timestamp\": 0, \"output_length\": 1}"), HasSubstr("hash_ids: must be an array"));
  EXPECT_THAT(fault("{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [0, 1.5]}"), HasSubstr("whole numbers"));
  EXPECT_THAT(fault("{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [-3]}"), HasSubstr("whole numbers"));
  EXPECT_THAT(fault("{\"timestamp\": 18446744073709551615, \"output_length\": 1, \"hash_ids\": []}"),
              HasSubstr("timestamp: out of range"));
}

TEST_F(TraceTest, APromptIsBounded) {
  std::string ids = "0";
  for (int i = 1; i < 2048; ++i) ids += ",0";
  EXPECT_TRUE(Read("{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [" + ids + "]}").ok());
  EXPECT_THAT(Read("{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [" + ids + ",0]}").status().ToString(),
              HasSubstr("hash_ids: 2049, the limit is 2048"));
}

TEST_F(TraceTest, AnEmptyOrMissingFileIsRefused) {
  EXPECT_THAT(Read("").status().ToString(), HasSubstr("has no requests"));
  EXPECT_THAT(ReadMooncakeTrace(folder_ / "none").status().ToString(), HasSubstr("--trace: cannot read"));
}

}  // namespace
}  // namespace kvmesh
