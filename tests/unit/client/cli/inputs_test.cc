#include "client/cli/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "kvstore/block/key_chain.h"
#include "tests/support/temp_dir.h"

namespace kvmesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class InputsTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  TempDir folder_;
};

TEST_F(InputsTest, TokensAreSeparatedBySpaceOrCommas) {
  EXPECT_THAT(*ParseTokens("1, 2\t3\r\n4,,5 ", "--tokens"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(*ParseTokens("0 4294967295", "--tokens"), ElementsAre(0u, 4294967295u));
}

TEST_F(InputsTest, AcceptedFormatsAreASetOfNames) {
  EXPECT_EQ(*ParseAccepted({}), LossyFormats());
  EXPECT_EQ(*ParseAccepted({"int8", "fp8", "int8"}), LossyFormats(1u << 5 | 1u << 4));
  EXPECT_THAT(ParseAccepted({"int8", "int16"}).status().ToString(), HasSubstr("--accept: \"int16\" is no format"));
}

TEST_F(InputsTest, WhatIsNoTokenIsNamed) {
  for (const std::string word : {"x", "-1", "4294967296", "1.5", "0x10", "1e3", "99999999999999999999"}) {
    const absl::Status status = ParseTokens("7 " + word + " 8", "--tokens").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--tokens: \"" + word + "\"")) << word;
  }
  for (const std::string nothing : {"", " ", ",,\n"}) {
    EXPECT_THAT(ParseTokens(nothing, "--tokens").status().ToString(), HasSubstr("--tokens: no tokens"));
  }
  EXPECT_LT(ParseTokens(std::string(1 << 20, 'y'), "--tokens").status().message().size(), 200u);
}

TEST_F(InputsTest, TokensAreBounded) {
  std::string text;
  for (uint64_t i = 0; i < kMaxPromptTokens; ++i) text += "7 ";
  EXPECT_EQ(ParseTokens(text, "--tokens")->size(), kMaxPromptTokens);
  EXPECT_THAT(ParseTokens(text + "7", "--tokens").status().ToString(), HasSubstr("more than 1048576 tokens"));
}

TEST_F(InputsTest, FilesAreReadByteForByte) {
  const std::string bytes = std::string("a\0\r\n\xff", 5) + std::string(100'000, 'z') + "\n";
  EXPECT_EQ(*ReadInputFile(Write("f", bytes), "--file"), bytes);
  EXPECT_EQ(*ReadInputFile(Write("empty", ""), "--file"), "");
  EXPECT_THAT(ReadInputFile(folder_ / "none", "--file").status().ToString(), HasSubstr("--file: cannot read "));
  EXPECT_FALSE(ReadInputFile(folder_.path(), "--file").ok());
}

TEST_F(InputsTest, AFaultyIdentityFileIsNamed) {
  EXPECT_EQ(ReadIdentityFile(Write("good", R"({"model": "m", "block_tokens": 16})"))->model, "m");
  const std::string bad = Write("bad", R"({"modle": "m", "block_tokens": 16})");
  EXPECT_THAT(ReadIdentityFile(bad).status().ToString(), HasSubstr("--identity: " + bad + ": "));
  EXPECT_THAT(ReadIdentityFile(bad).status().ToString(), HasSubstr("modle"));
}

}  // namespace
}  // namespace kvmesh
