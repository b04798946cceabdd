#include "worker/model/safetensors.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::WriteFile;

// A file of this header and `data_bytes` zero bytes.
std::string FileOf(const std::string& header, size_t data_bytes) {
  std::string out;
  AppendLittleEndian(uint64_t{header.size()}, out);
  return out + header + std::string(data_bytes, '\0');
}

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& content) {
    WriteFile(path_, content);
    return SafetensorsFile::Open(path_);
  }
  std::string OpenError(const std::string& content) {
    const absl::Status status = Open(content).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    return std::string(status.message());
  }

  TempDir dir_;
  const std::string path_ = dir_ / "model.safetensors";
};

TEST_F(SafetensorsTest, ReadsEveryTypeToFloat) {
  // The header's length is odd, so that no tensor is aligned.
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
                       R"("c":{"dtype":"BF16","shape":[],"data_offsets":[12,14]},)"
                       R"("d":{"dtype":"F32","shape":[3,0],"data_offsets":[14,14]}})";
  header.append(1 - header.size() % 2, ' ');
  const std::string data("\x00\x00\xc0\x3f\x00\x00\x00\xc0\x00\x3c\x00\xc2\x40\x40", 14);
  const auto file = Open(FileOf(header, 0) + data);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 4u);
  EXPECT_EQ((*file)->Tensor("a", {1, 2})->ToFloat(), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ((*file)->Tensor("b", {2})->ToFloat(), (std::vector<float>{1.0f, -3.0f}));
  EXPECT_EQ((*file)->Tensor("c", {})->ToFloat(), std::vector<float>{3.0f});
  EXPECT_TRUE((*file)->Tensor("d", {3, 0})->ToFloat().empty());
}

TEST_F(SafetensorsTest, AbsentTensorOrOtherShapeIsNamed) {
  const auto file = Open(testing::RandomSafetensors({{"w", {2, 3}}}, 1));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string((*file)->Tensor("x", {2, 3}).status().message()), AllOf(HasSubstr(path_), HasSubstr("x")));
  EXPECT_THAT(std::string((*file)->Tensor("w", {3, 2}).status().message()),
              AllOf(HasSubstr(path_), HasSubstr("tensor w: shape [2, 3] instead of [3, 2]")));
}

TEST_F(SafetensorsTest, MissingFileIsNotFound) {
  EXPECT_EQ(SafetensorsFile::Open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(dir_.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, MalformedFilesAreRefused) {
  EXPECT_THAT(OpenError(""), HasSubstr("shorter than the header length"));
  EXPECT_THAT(OpenError("1234567"), HasSubstr("shorter than the header length"));
  EXPECT_THAT(OpenError(std::string(8, '\xff')), HasSubstr("header is longer than the limit"));
  EXPECT_THAT(OpenError(FileOf("{}", 0).substr(0, 9)), HasSubstr("header is longer than the file"));
  EXPECT_THAT(OpenError(FileOf("", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(OpenError(FileOf("[]", 0)), HasSubstr("not an object"));
  EXPECT_THAT(OpenError(FileOf("{}", 1)), HasSubstr("unused bytes at the end"));
  EXPECT_TRUE(Open(FileOf("{}", 0)).ok());
}

TEST_F(SafetensorsTest, MalformedTensorsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> entries = {
      {"5", "not an object"},
      {R"({"dtype":"F32","shape":[1]})", "no data_offsets"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1})", "unknown field"},
      {R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})", "dtype"},
      {R"({"dtype":1,"shape":[1],"data_offsets":[0,4]})", "dtype"},
      {R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", "shape"},
      {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "shape"},
      {R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", "shape"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})", "shape"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})", "shape"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", "shape"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":"x"})", "data_offsets"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[6,10]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})", "disagree"},
      {R"({"dtype":"F16","shape":[1],"data_offsets":[0,4]})", "disagree"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "unused bytes before"},
  };
  for (const auto& [entry, what] : entries) {
    EXPECT_THAT(OpenError(FileOf("{\"w\":" + entry + "}", 8)), AllOf(HasSubstr("tensor w: "), HasSubstr(what)))
        << entry;
  }
}

TEST_F(SafetensorsTest, OverlapsAndDuplicatesAreRefused) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string b = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
  EXPECT_THAT(OpenError(FileOf("{" + a + "," + b + "}", 8)), HasSubstr("tensor b: overlaps"));
  EXPECT_THAT(OpenError(FileOf("{" + a + "," + a + "}", 8)), HasSubstr("duplicate name a"));
  EXPECT_TRUE(Open(FileOf("{" + a + "}", 8)).ok());
}

// Whatever happens to a file, it is refused or gives tensors that lie in it.
TEST_F(SafetensorsTest, MutatedFilesNeverCrash) {
  const std::string good = testing::RandomSafetensors({{"a", {2, 3}}, {"b", {4}}, {"c", {1, 1}}}, 3);
  const size_t header_end = good.size() - 11 * 4;
  int opened = 0, refused = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    std::string bad = good;
    for (uint32_t edits = 1 + random() % 3; edits > 0 && !bad.empty(); --edits) {
      const size_t range = random() % 8 == 0 ? bad.size() : std::min(header_end, bad.size());
      const size_t at = random() % range;
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad[at] = "0123456789,:[]{}\"- "[random() % 19];
          break;
        case 2:
          bad.erase(at, 1 + random() % 4);
          break;
        default:
          bad.resize(at);
      }
    }
    const auto file = Open(bad);
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << "seed " << seed;
      ++refused;
      continue;
    }
    ++opened;
    for (const auto& [name, tensor] : (*file)->tensors()) {
      EXPECT_EQ(tensor.ToFloat().size(), static_cast<size_t>(tensor.elements())) << "seed " << seed;
      EXPECT_GE(tensor.bytes.data(), (*file)->contents().data()) << "seed " << seed;
      EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), (*file)->contents().data() + bad.size()) << "seed " << seed;
    }
  }
  EXPECT_GT(opened, 5);
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace kvmesh
