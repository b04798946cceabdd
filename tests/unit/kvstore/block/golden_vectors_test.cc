// Compares this implementation with tests/golden/vectors.json, which an independent Python program wrote.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "kvstore/block/block_header.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/secrets.h"
#include "kvstore/block/set_digest.h"
#include "kvstore/block/ticket.h"

namespace kvmesh {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string Bytes(const nlohmann::json& hex) { return absl::HexStringToBytes(hex.get<std::string>()); }

class GoldenVectorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* source = std::getenv("KVMESH_SOURCE_DIR");
    if (source == nullptr) GTEST_SKIP() << "KVMESH_SOURCE_DIR is not set; run through ctest";
    folder_ = std::string(source) + "/tests/golden";
    text_ = ReadFile(folder_ + "/vectors.json");
    vectors_ = nlohmann::json::parse(text_, nullptr, false);
    ASSERT_TRUE(vectors_.is_object());
  }

  std::string folder_;
  std::string text_;
  nlohmann::json vectors_;
};

TEST_F(GoldenVectorsTest, IdentitiesAndKeys) {
  ASSERT_GE(vectors_["identities"].size(), 10u);
  for (const nlohmann::json& vector : vectors_["identities"]) {
    SCOPED_TRACE(vector["name"].get<std::string>());
    const absl::StatusOr<CacheIdentity> identity = ParseIdentityJson(vector["identity"].dump());
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_EQ(absl::BytesToHexString(CanonicalBytes(*identity)), vector["canonical"]);
    const Fingerprint fingerprint = ComputeFingerprint(*identity);
    EXPECT_EQ(fingerprint.ToHex(), vector["fingerprint"]);
    const TenantSecret tenant_secret = DeriveTenantSecret(Bytes(vector["cluster_secret"]), identity->tenant);
    EXPECT_EQ(tenant_secret.ToHex(), vector["tenant_secret"]);
    const RootKey root = DeriveRoot(tenant_secret, fingerprint);
    EXPECT_EQ(root.ToHex(), vector["root"]);

    const auto tokens = vector["tokens"].get<std::vector<uint32_t>>();
    std::vector<std::string> keys;
    for (const BlockKey& key : ComputeBlockKeys(RootAsParent(root), tokens, identity->block_tokens)) {
      keys.push_back(key.ToHex());
    }
    EXPECT_EQ(keys, vector["keys"].get<std::vector<std::string>>());

    const absl::StatusOr<CacheIdentity> back = ParseIdentityJson(IdentityToJson(*identity));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, *identity);
  }
}

TEST_F(GoldenVectorsTest, KeysWithNonTokenInputs) {
  for (const nlohmann::json& vector : vectors_["extras"]) {
    std::vector<NonTokenInput> inputs;
    for (const nlohmann::json& item : vector["items"]) {
      inputs.push_back({item["offset"].get<uint32_t>(), *Digest32::FromBytes(Bytes(item["content"]))});
    }
    const Digest32 digest = ComputeExtraDigest(inputs);
    EXPECT_EQ(digest.ToHex(), vector["digest"]);
    const BlockKey parent = *BlockKey::FromBytes(Bytes(vector["parent"]));
    const auto tokens = vector["tokens"].get<std::vector<uint32_t>>();
    EXPECT_EQ(ComputeBlockKey(parent, tokens, &digest).ToHex(), vector["key"]);
  }
}

TEST_F(GoldenVectorsTest, HeaderAndLayout) {
  const std::string bytes = Bytes(vectors_["header"]);
  const auto header = DecodeBlockHeader(std::as_bytes(std::span(bytes.data(), bytes.size())));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->start_position, 160u);
  EXPECT_EQ(header->shard, (ShardRange{4, 8, 1, 3}));
  EXPECT_EQ(header->seal_time, absl::FromUnixMicros(1'700'000'000'123'456));
  std::array<std::byte, kBlockHeaderBytes> encoded;
  EncodeBlockHeader(*header, encoded);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size()), bytes);
  EXPECT_EQ(ComputeLayoutFingerprint(CanonicalLayout(KvFormat::kBf16, 4, 2, 16, 8)).ToHex(),
            vectors_["layout_fingerprint"]);
}

TEST_F(GoldenVectorsTest, TicketOpensAndSealsBack) {
  const nlohmann::json& vector = vectors_["ticket"];
  const TicketKey key = DeriveTicketKey(Bytes(vector["cluster_secret"]));
  EXPECT_EQ(key.ToHex(), vector["key"]);
  const absl::StatusOr<Ticket> ticket =
      OpenTicket(Bytes(vector["sealed"]), key, absl::FromUnixMillis(1'700'000'000'000));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(absl::BytesToHexString(SealTicket(*ticket, key)), vector["sealed"]);
}

TEST_F(GoldenVectorsTest, SetDigestSum) {
  SetDigest digest;
  for (uint8_t i = 0; i < 3; ++i) {
    BlockKey parent;
    BlockKey key;
    parent.bytes.fill(i);
    key.bytes.fill(i + 1);
    digest.Add(SetMember(parent, key, LossyFormats(i)));
  }
  EXPECT_EQ(absl::BytesToHexString(digest.SumBytes()), vectors_["set_digest"]["sum"]);
  EXPECT_EQ(digest.count(), vectors_["set_digest"]["count"]);
}

TEST_F(GoldenVectorsTest, CommittedFileIsWhatThePythonProgramWrites) {
  if (std::system("python3 -c 'import hashlib, hmac, json' >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  char pattern[] = "/tmp/kvmesh_vectorsXXXXXX";
  const std::string folder = mkdtemp(pattern);
  const std::string out = folder + "/vectors.json";
  ASSERT_EQ(std::system(("python3 -B '" + folder_ + "/make_vectors.py' '" + out + "'").c_str()), 0);
  EXPECT_TRUE(ReadFile(out) == text_) << "run tests/golden/make_vectors.py and look at what changed";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvmesh
