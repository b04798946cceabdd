#include "kvstore/service/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kvmesh {
namespace {

using ::testing::HasSubstr;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() : app_("A server", "kvmesh-test") {
    app_.add_option("--port", port_, "Port")->check(CLI::Range(0, 65535));
    app_.add_option("--name", name_, "Name")->required();
  }

  std::optional<int> Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "kvmesh-test");
    return TryParseFlags(app_, static_cast<int>(arguments.size()), arguments.data(), out_, err_);
  }
  void ExpectUsageError(std::vector<const char*> arguments, const std::string& part) {
    EXPECT_EQ(Parse(std::move(arguments)), kUsageExitCode);
    const std::string line = err_.str();
    EXPECT_THAT(line, HasSubstr(part));
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    EXPECT_EQ(line.rfind("kvmesh-test: ", 0), 0u) << line;
    EXPECT_EQ(out_.str(), "");
  }
  std::string WriteConfig(const std::string& text) {
    char pattern[] = "/tmp/kvmesh_flagsXXXXXX";
    const int fd = mkstemp(pattern);
    EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(fd);
    config_ = pattern;
    return config_;
  }
  ~FlagsTest() override {
    if (!config_.empty()) unlink(config_.c_str());
  }

  CLI::App app_;
  int port_ = 1;
  std::string name_;
  std::string config_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(FlagsTest, RightFlagsGoOn) {
  EXPECT_EQ(Parse({"--name", "a", "--port", "80"}), std::nullopt);
  EXPECT_EQ(name_, "a");
  EXPECT_EQ(port_, 80);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(FlagsTest, HelpExitsZero) {
  EXPECT_EQ(Parse({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--port"));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(FlagsTest, UnknownFlagIsNamed) { ExpectUsageError({"--name", "a", "--prot", "1"}, "--prot"); }
TEST_F(FlagsTest, MissingFlagIsNamed) { ExpectUsageError({}, "--name"); }
TEST_F(FlagsTest, WrongTypeIsNamed) { ExpectUsageError({"--name", "a", "--port", "x"}, "--port"); }
TEST_F(FlagsTest, OutOfRangeIsNamed) { ExpectUsageError({"--name", "a", "--port", "65536"}, "--port"); }
TEST_F(FlagsTest, MissingValueIsNamed) { ExpectUsageError({"--name", "a", "--port"}, "--port"); }
TEST_F(FlagsTest, StrayWordIsNamed) { ExpectUsageError({"--name", "a", "stray"}, "stray"); }
TEST_F(FlagsTest, TwiceGivenIsNamed) { ExpectUsageError({"--name", "a", "--port", "1", "--port", "2"}, "--port"); }

TEST_F(FlagsTest, ConfigFileGivesFlagsAndTheCommandLineWins) {
  const std::string config = WriteConfig("name = \"from file\"\nport = 81\n");
  EXPECT_EQ(Parse({"--config", config.c_str(), "--port", "82"}), std::nullopt) << err_.str();
  EXPECT_EQ(name_, "from file");
  EXPECT_EQ(port_, 82);
}

TEST_F(FlagsTest, UnknownNameInTheConfigFileIsNamed) {
  const std::string config = WriteConfig("name = \"a\"\nprot = 81\n");
  ExpectUsageError({"--config", config.c_str()}, "prot");
}

TEST_F(FlagsTest, WrongValueInTheConfigFileIsNamed) {
  const std::string config = WriteConfig("name = \"a\"\nport = many\n");
  ExpectUsageError({"--config", config.c_str()}, "--port");
}

TEST_F(FlagsTest, MissingConfigFileIsNamed) {
  ExpectUsageError({"--name", "a", "--config", "/nonexistent/kvmesh.toml"}, "/nonexistent/kvmesh.toml");
}

TEST_F(FlagsTest, ProgramLeavesWithTheCodes) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const char* help[] = {"kvmesh-test", "--help"};
  EXPECT_EXIT(ParseFlags(app_, 2, help), ::testing::ExitedWithCode(0), "");
  const char* wrong[] = {"kvmesh-test", "--name", "a", "--prot"};
  EXPECT_EXIT(ParseFlags(app_, 4, wrong), ::testing::ExitedWithCode(2), "--prot");
  EXPECT_EXIT(ExitOnUsageError(app_, absl::InvalidArgumentError("--tls-cert: required")), ::testing::ExitedWithCode(2),
              "kvmesh-test: --tls-cert: required");
  ExitOnUsageError(app_, absl::OkStatus());
}

}  // namespace
}  // namespace kvmesh
