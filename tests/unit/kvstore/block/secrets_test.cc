#include "kvstore/block/secrets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/escaping.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;

TEST(SecretsTest, Sha256OfKnownText) {
  EXPECT_EQ(Sha256("").ToHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc").ToHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(SecretsTest, HmacOfRfc4231Cases) {
  EXPECT_EQ(HmacSha256(std::string(20, '\x0b'), "Hi There").ToHex(),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HmacSha256("Jefe", "what do ya want for nothing?").ToHex(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First").ToHex(),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(SecretsTest, HmacTakesAnEmptyKeyAndEmptyData) {
  EXPECT_EQ(HmacSha256("", "").ToHex(), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  EXPECT_EQ(HmacSha256(absl::string_view(), absl::string_view()), HmacSha256("", ""));
}

TEST(SecretsTest, DerivedKeysAreGolden) {
  EXPECT_EQ(DeriveTicketKey("cluster").ToHex(), "b7dcadd47caeb84367160f50e46f0fbefc7c7df34908f64372dd7b54d4979c10");
  CacheIdentity identity;
  identity.model = "m";
  identity.block_tokens = 16;
  const Fingerprint fingerprint = ComputeFingerprint(identity);
  EXPECT_EQ(fingerprint.ToHex(), "bf09cccf68cdca90812e0117814b5a89f9dc80a87211311e75a0403ac1b1db6f");
  EXPECT_EQ(DeriveRoot(DeriveTenantSecret("", ""), fingerprint).ToHex(), "5132f669bf006c2d57a05d951ab7bc4d");
}

TEST(SecretsTest, SecretAndTenantBothSeparate) {
  EXPECT_NE(DeriveTenantSecret("s", "a"), DeriveTenantSecret("s", "b"));
  EXPECT_NE(DeriveTenantSecret("s", "a"), DeriveTenantSecret("t", "a"));
  EXPECT_NE(DeriveRoot(DeriveTenantSecret("s", "a"), {}), DeriveRoot(DeriveTenantSecret("s", "b"), {}));
}

TEST(SecretsTest, ConstantTimeEqualIsEqual) {
  EXPECT_TRUE(ConstantTimeEqual("", ""));
  EXPECT_TRUE(ConstantTimeEqual("abc", "abc"));
  EXPECT_FALSE(ConstantTimeEqual("abc", "abd"));
  EXPECT_FALSE(ConstantTimeEqual("abc", "ab"));
}

class SecretFileTest : public ::testing::Test {
 protected:
  SecretFileTest() {
    char pattern[] = "/tmp/kvmesh_secretXXXXXX";
    folder_ = mkdtemp(pattern);
    path_ = folder_ + "/secret";
  }
  ~SecretFileTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& content) { std::ofstream(path_, std::ios::binary) << content; }

  std::string folder_;
  std::string path_;
};

TEST_F(SecretFileTest, BytesAreNeverTrimmed) {
  const std::string content("\n \0secret\r\n", 11);
  Write(content);
  const absl::StatusOr<std::string> secret = ReadSecretFile(path_);
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(*secret, content);
}

TEST_F(SecretFileTest, EmptyFileIsAnEmptySecret) {
  Write("");
  const absl::StatusOr<std::string> secret = ReadSecretFile(path_);
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(*secret, "");
}

TEST_F(SecretFileTest, SizeIsBounded) {
  Write(std::string(kMaxSecretFileBytes, 'k'));
  EXPECT_TRUE(ReadSecretFile(path_).ok());
  Write(std::string(kMaxSecretFileBytes + 1, 'k'));
  const absl::Status status = ReadSecretFile(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4096 bytes"));
}

TEST_F(SecretFileTest, ErrorsNameThePath) {
  const absl::Status missing = ReadSecretFile(path_).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path_));
  EXPECT_FALSE(ReadSecretFile(folder_).ok());
  if (geteuid() == 0) GTEST_SKIP() << "root reads every file";
  Write("s");
  std::filesystem::permissions(path_, std::filesystem::perms::none);
  EXPECT_EQ(ReadSecretFile(path_).status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace kvmesh
