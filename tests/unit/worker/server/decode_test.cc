#include "worker/server/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;
using Sources = google::protobuf::RepeatedPtrField<v1::SourceSpan>;

v1::SourceSpan GoodSource(uint32_t first, uint32_t count) {
  v1::SourceSpan source;
  source.set_first_block(first);
  source.set_block_count(count);
  source.set_peer_id("w2");
  source.set_peer_address("10.0.0.2:7002");
  source.set_ticket(std::string("t\0k", 3));
  return source;
}

TEST(DecodeTest, SourcesKeepTheirOrderAndFields) {
  Sources sources;
  EXPECT_TRUE(SourcesFromProto(sources)->empty());
  for (int i = 0; i < kMaxSources; ++i) *sources.Add() = GoodSource(static_cast<uint32_t>(i), 1);
  const absl::StatusOr<std::vector<PeerSource>> decoded = SourcesFromProto(sources);
  ASSERT_TRUE(decoded.ok());
  ASSERT_EQ(decoded->size(), static_cast<size_t>(kMaxSources));
  EXPECT_EQ((*decoded)[7].first_block, 7u);
  EXPECT_EQ((*decoded)[7].block_count, 1u);
  EXPECT_EQ((*decoded)[7].peer_id, "w2");
  EXPECT_EQ((*decoded)[7].peer_address, "10.0.0.2:7002");
  EXPECT_EQ((*decoded)[7].ticket.size(), 3u);
  *sources.Add() = GoodSource(0, 1);
  EXPECT_THAT(SourcesFromProto(sources).status().ToString(), HasSubstr("sources: 65, the limit is 64"));
}

TEST(DecodeTest, AFaultySourceIsNamedByField) {
  const auto fault = [](const std::function<void(v1::SourceSpan&)>& change) {
    Sources sources;
    *sources.Add() = GoodSource(0, 1);
    *sources.Add() = GoodSource(0, 1);
    change(sources[1]);
    const absl::Status status = SourcesFromProto(sources).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(fault([](auto& s) { s.set_block_count(0); }), HasSubstr("sources.block_count: 0"));
  EXPECT_THAT(fault([](auto& s) { s.set_block_count(kMaxPromptTokens + 1); }), HasSubstr("sources.block_count"));
  EXPECT_THAT(fault([](auto& s) { s.clear_peer_address(); }), HasSubstr("sources.peer_address"));
  EXPECT_THAT(fault([](auto& s) { s.clear_ticket(); }), HasSubstr("sources.ticket"));
}

TEST(DecodeTest, FloatsSurviveBitForBit) {
  const std::vector<float> values = {
      0.0f,          -0.0f, 1.5f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::denorm_min(),
      std::nanf("7")};
  std::string bytes;
  FloatsToBytes(values, bytes);
  ASSERT_EQ(bytes.size(), values.size() * 4);
  const absl::StatusOr<std::vector<float>> back = FloatsFromBytes(bytes, values.size(), "key");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::memcmp(back->data(), values.data(), bytes.size()), 0);
  EXPECT_EQ(bytes.substr(8, 4), std::string("\x00\x00\xc0\x3f", 4));

  FloatsToBytes({}, bytes);
  EXPECT_TRUE(bytes.empty());
  EXPECT_TRUE(FloatsFromBytes("", 0, "key")->empty());
}

TEST(DecodeTest, FloatsOfAnotherCountAreRefused) {
  for (const size_t size : {size_t{0}, size_t{4}, size_t{7}, size_t{9}, size_t{12}}) {
    EXPECT_THAT(FloatsFromBytes(std::string(size, 'x'), 2, "value").status().ToString(),
                HasSubstr("must be 2 fp32 values"))
        << size;
  }
  // 4 x 2^62 is 0 in 64 bits.
  EXPECT_TRUE(absl::IsInvalidArgument(FloatsFromBytes("", uint64_t{1} << 62, "value").status()));
}

TEST(DecodeTest, HitsGoToTheirSources) {
  v1::HitTokens proto;
  HitsToProto({1, 2, 3, 4}, proto);
  EXPECT_EQ(proto.device(), 1u);
  EXPECT_EQ(proto.host(), 2u);
  EXPECT_EQ(proto.disk(), 3u);
  EXPECT_EQ(proto.peer(), 4u);
}

}  // namespace
}  // namespace kvmesh
