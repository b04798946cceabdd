#include "kvstore/wire/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "kvstore/block/key_chain.h"
#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

CacheIdentity FullIdentity() {
  return {.tenant = "acme",
          .cache_salt = "salt",
          .model = "llama",
          .model_revision = "r1",
          .adapter = "lora",
          .adapter_revision = "a1",
          .numerics = "bf16",
          .block_tokens = 16,
          .rope = RopeIdentity{.theta = 10000, .rotary_dim = 64, .interleaved = true, .scaling = "linear"},
          .attention_policy = "sinks=4,window=128",
          .extra = {{"b", ""}, {"a", "1"}}};
}

TEST(WireTest, IdentitySurvivesTheWire) {
  for (const CacheIdentity& identity : {FullIdentity(), CacheIdentity{.model = "m", .block_tokens = 1}}) {
    v1::CacheIdentity proto;
    proto.set_tenant("left over");
    IdentityToProto(identity, proto);
    v1::CacheIdentity parsed;
    ASSERT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
    const absl::StatusOr<CacheIdentity> back = IdentityFromProto(parsed);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, identity);
  }
}

TEST(WireTest, AFaultyIdentityIsNamedByField) {
  const auto fault = [](const std::function<void(v1::CacheIdentity&)>& change) {
    v1::CacheIdentity proto;
    IdentityToProto(FullIdentity(), proto);
    change(proto);
    const absl::Status status = IdentityFromProto(proto).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(fault([](auto& proto) { proto.Clear(); }), StartsWith("identity.block_tokens"));
  EXPECT_THAT(fault([](auto& proto) { proto.set_block_tokens(4097); }), StartsWith("identity.block_tokens"));
  EXPECT_THAT(fault([](auto& proto) { proto.set_model("\xff"); }), StartsWith("identity.model"));
  EXPECT_THAT(fault([](auto& proto) { proto.mutable_rope()->set_theta(-1); }), StartsWith("identity.rope"));
  EXPECT_THAT(fault([](auto& proto) { proto.set_attention_policy("sinks=04,window=1"); }),
              StartsWith("identity.attention_policy"));
  EXPECT_THAT(fault([](auto& proto) { proto.mutable_extra(0)->set_name("UPPER"); }), StartsWith("identity.extra"));
  EXPECT_THAT(fault([](auto& proto) { proto.mutable_extra(0)->set_name(proto.extra(1).name()); }),
              HasSubstr("a name stands twice"));
}

// A later version may tell identities apart by a field that this one does not know.
TEST(WireTest, AnIdentityWithAnUnknownFieldIsRefusedAtAnyDepth) {
  const auto fault = [](const std::function<void(v1::CacheIdentity&)>& change) {
    v1::CacheIdentity proto;
    IdentityToProto(FullIdentity(), proto);
    change(proto);
    v1::CacheIdentity parsed;
    EXPECT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
    return IdentityFromProto(parsed).status().ToString();
  };
  const auto add = [](google::protobuf::Message& message, int number) {
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(number, 0);
  };
  EXPECT_THAT(fault([&](auto& proto) { add(proto, 12); }), HasSubstr("INVALID_ARGUMENT: identity: unknown field 12"));
  EXPECT_THAT(fault([&](auto& proto) { add(*proto.mutable_rope(), 5); }),
              HasSubstr("INVALID_ARGUMENT: identity.rope: unknown field 5"));
  EXPECT_THAT(fault([&](auto& proto) { add(*proto.mutable_extra(1), 3); }),
              HasSubstr("INVALID_ARGUMENT: identity.extra: unknown field 3"));
}

TEST(WireTest, TheLargestIdentityFitsAndALargerMessageIsRefused) {
  const std::string longest(1024, 'x');
  CacheIdentity identity = FullIdentity();
  for (std::string* text :
       {&identity.tenant, &identity.cache_salt, &identity.model, &identity.model_revision, &identity.adapter,
        &identity.adapter_revision, &identity.numerics, &identity.rope->scaling}) {
    *text = longest;
  }
  identity.extra.clear();
  for (int i = 10; i < 74; ++i) identity.extra[absl::StrCat(i)] = std::string(1021, 'x');
  v1::CacheIdentity proto;
  IdentityToProto(identity, proto);
  const absl::StatusOr<CacheIdentity> back = IdentityFromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, identity);
  proto.mutable_extra(0)->mutable_value()->append(10'000, 'x');
  EXPECT_THAT(IdentityFromProto(proto).status().ToString(), HasSubstr("bytes, the limit is 81920"));
}

TEST(WireTest, KeysAreAViewOfTheirBytes) {
  const std::vector<BlockKey> keys = TestChain(TestRoot(1), 1, 5);
  const std::string bytes(KeysToBytes(keys));
  ASSERT_EQ(bytes.size(), 80u);
  const absl::StatusOr<std::span<const BlockKey>> back = KeysFromBytes(bytes, "block_keys");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::vector(back->begin(), back->end()), keys);
  EXPECT_EQ(static_cast<const void*>(back->data()), static_cast<const void*>(bytes.data()));
  EXPECT_TRUE(KeysFromBytes("", "block_keys")->empty());
  EXPECT_TRUE(KeysToBytes({}).empty());
}

TEST(WireTest, KeysOfAnotherLengthAreRefused) {
  for (const size_t size : {size_t{1}, size_t{15}, size_t{17}, kMaxPromptTokens * 16 - 1}) {
    const absl::Status status = KeysFromBytes(std::string(size, 'x'), "block_keys").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << size;
    EXPECT_THAT(std::string(status.message()), StartsWith(absl::StrCat("block_keys: ", size, " bytes")));
  }
  EXPECT_TRUE(KeysFromBytes(std::string(kMaxPromptTokens * 16, 'x'), "k").ok());
  EXPECT_THAT(KeysFromBytes(std::string((kMaxPromptTokens + 1) * 16, 'x'), "k").status().ToString(),
              HasSubstr("k: 1048577 keys, the limit is 1048576"));
}

TEST(WireTest, TokenCountsAreBounded) {
  EXPECT_TRUE(CheckTokenCount(1, "tokens").ok());
  EXPECT_TRUE(CheckTokenCount(kMaxPromptTokens, "tokens").ok());
  EXPECT_THAT(CheckTokenCount(0, "tokens").ToString(), HasSubstr("tokens: empty"));
  EXPECT_THAT(CheckTokenCount(kMaxPromptTokens + 1, "ids").ToString(),
              HasSubstr("ids: 1048577 tokens, the limit is 1048576"));
}

TEST(WireTest, FixedBytesHaveExactlyTheirSize) {
  const RootKey root = TestRoot(3);
  EXPECT_EQ(*FixedFromBytes<RootKey>(root.ToString(), "root"), root);
  for (const size_t size : {size_t{0}, size_t{15}, size_t{17}}) {
    EXPECT_THAT(FixedFromBytes<RootKey>(std::string(size, 'x'), "root").status().ToString(),
                HasSubstr(absl::StrCat("root: ", size, " bytes, must be 16")));
  }
}

}  // namespace
}  // namespace kvmesh
