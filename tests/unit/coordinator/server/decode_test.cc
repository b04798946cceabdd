// What only a unit can see of decoding: the tenant of the certificate, and the cache of identities.
#include "coordinator/server/decode.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>

#include "kvstore/block/cache_identity.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

v1::CacheIdentity Identity(const std::string& tenant) {
  v1::CacheIdentity identity;
  identity.set_tenant(tenant);
  identity.set_model("m");
  identity.set_block_tokens(16);
  return identity;
}

RootKey RootOf(const std::string& tenant) {
  CacheIdentity identity;
  identity.tenant = tenant;
  identity.model = std::string(1, 'm');
  identity.block_tokens = 16;
  return DeriveRoot(DeriveTenantSecret("secret", tenant), ComputeFingerprint(identity));
}

TEST(IdentityCacheTest, TenantOfTheCertificateReplacesTheRequests) {
  IdentityCache cache("secret", 16);
  for (int round = 0; round < 2; ++round) {  // made, then remembered
    EXPECT_EQ(cache.Resolve(Identity("acme"), std::nullopt)->root, RootOf("acme"));
    EXPECT_EQ(cache.Resolve(Identity("acme"), "other")->root, RootOf("other"));
    EXPECT_EQ(cache.Resolve(Identity(""), "acme")->root, RootOf("acme"));
    EXPECT_EQ(cache.Resolve(Identity("acme"), "")->root, RootOf(""));
  }
  EXPECT_EQ(cache.Resolve(Identity("acme"), std::nullopt)->block_tokens, 16u);
}

TEST(IdentityCacheTest, FullCacheStartsAgain) {
  IdentityCache cache("secret", 2);
  for (int round = 0; round < 3; ++round) {
    for (const char* tenant : {"a", "b", "c"}) {
      EXPECT_EQ(cache.Resolve(Identity(tenant), std::nullopt)->root, RootOf(tenant));
    }
  }
}

TEST(IdentityCacheTest, FaultsAreNotRemembered) {
  IdentityCache cache("secret", 2);
  v1::CacheIdentity wrong = Identity("a");
  wrong.set_block_tokens(0);
  EXPECT_EQ(cache.Resolve(wrong, std::nullopt).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.Resolve(wrong, std::nullopt).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(IdentityCacheTest, UnknownFieldsAreRefusedAndNotRemembered) {
  IdentityCache cache("secret", 16);
  v1::CacheIdentity later = Identity("a");
  later.GetReflection()->MutableUnknownFields(&later)->AddVarint(99, 1);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(cache.Resolve(later, std::nullopt).status().message(), "identity: unknown field 99");
  }
  EXPECT_EQ(cache.size(), 0u);
  later.GetReflection()->MutableUnknownFields(&later)->AddLengthDelimited(100)->assign(1 << 20, 'x');
  EXPECT_THAT(std::string(cache.Resolve(later, std::nullopt).status().message()),
              HasSubstr("bytes, the limit is 81920"));
}

TEST(IdentityCacheTest, OnlySmallIdentitiesAreRemembered) {
  IdentityCache cache("secret", 16);
  v1::CacheIdentity identity = Identity("a");
  for (char name : {'a', 'b', 'c', 'd'}) {
    identity.add_extra()->set_name(std::string(1, name));
    identity.mutable_extra()->rbegin()->set_value(std::string(1000, 'x'));
  }
  const auto small = cache.Resolve(identity, std::nullopt);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(cache.size(), 1u);
  identity.set_adapter(std::string(100, 'x'));
  const auto large = cache.Resolve(identity, std::nullopt);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_NE(large->root, small->root);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(DecodeTest, PrefixNeedsAFullBlock) {
  IdentityCache cache("secret", 2);
  v1::Prefix prefix;
  *prefix.mutable_identity() = Identity("a");
  DecodedPrompt prompt;
  EXPECT_EQ(DecodePrefix(prefix, std::nullopt, cache, prompt).code(), absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 15; ++i) prefix.mutable_tokens()->add_ids(1);
  EXPECT_EQ(DecodePrefix(prefix, std::nullopt, cache, prompt).code(), absl::StatusCode::kInvalidArgument);
  prefix.mutable_tokens()->add_ids(1);
  ASSERT_TRUE(DecodePrefix(prefix, std::nullopt, cache, prompt).ok());
  EXPECT_EQ(prompt.keys.size(), 1u);
  EXPECT_EQ(prompt.root, RootOf("a"));
}

}  // namespace
}  // namespace kvmesh
