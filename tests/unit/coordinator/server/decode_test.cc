// What only a unit can see of decoding: the tenant of the certificate, and the cache of identities.
#include "coordinator/server/decode.h"

#include <gtest/gtest.h>

#include <string>

#include "kvstore/block/cache_identity.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {
namespace {

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
