// The program `kvmesh` as a shell meets it: exit codes, one JSON object on standard output, one line for wrong usage,
// and its end on a signal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/generate.h"
#include "kvstore/block/cache_identity.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"
#include "tests/system/silent_listener.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr char kKvmesh[] = KVMESH_BIN_DIR "/kvmesh";

std::vector<std::string> KeysOf(const json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

class CliTest : public testing::Test {
 protected:
  CliTest() {
    Write("identity.json", R"({"model": "m", "block_tokens": 4})");
    Write("tokens", "1,2 3\t4\n5 6,7,8\n9");
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  // A command line; FOLDER/ stands for the test's folder.
  std::vector<std::string> Argv(const std::string& line) const {
    std::vector<std::string> argv = {kKvmesh};
    for (const absl::string_view part : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      std::string word(part);
      if (const size_t at = word.find("FOLDER/"); at != std::string::npos) word.replace(at, 6, folder_.path());
      argv.push_back(std::move(word));
    }
    return argv;
  }
  EndedProgram Run(const std::string& line) const { return RunProgram(folder_.path(), Argv(line), kPatience); }
  // The one object on standard output of a run that exits with 0.
  json Object(const std::string& line) const {
    const EndedProgram ended = Run(line);
    EXPECT_EQ(ended.code, 0) << line << "\n" << ended.error;
    json object = json::parse(ended.output, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(object.is_object()) << line << "\n" << ended.output;
    return object;
  }

  TempDir folder_;
};

class CliClusterTest : public CliTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(cluster_.Start());
    at_ = absl::StrCat("--insecure --coordinator ", cluster_.coordinator_address());
  }

  ProcessCluster cluster_{ClusterConfig{.workers = {WorkerConfig{}}}};
  std::string at_;
};

TEST_F(CliTest, KeyPrintsOneHexKeyForEachFullBlock) {
  const EndedProgram ended = Run("key --identity FOLDER/identity.json --tokens-file FOLDER/tokens");
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_EQ(ended.output, "6395c485cd0c49200239478a8260156c\n9212545b2873e7d07f963ab6c8a45390\n");
  EXPECT_EQ(ended.error, "");
}

TEST_F(CliTest, GenerateWithAModelAloneNeedsNoServer) {
  const json out =
      Object(absl::StrCat("generate --model ", KVMESH_MODEL_DIR, " --prompt Inthebeginning ", "--max-tokens 5 --json"));
  EXPECT_EQ(out.at("prompt_tokens"), 14);
  EXPECT_EQ(out.at("computed_tokens"), 0);
  EXPECT_EQ(out.at("hits_by_tier"), json({{"device", 0}, {"host", 0}, {"disk", 0}, {"peer", 0}}));
  EXPECT_EQ(out.at("tokens").size(), 5u);
  EXPECT_EQ(out.at("text").get<std::string>().size(), 5u);
  EXPECT_GT(out.at("ttft_ms"), 0);
  EXPECT_GE(out.at("total_ms"), out.at("ttft_ms"));
  EXPECT_TRUE(out.at("worker").is_string());
}

TEST_F(CliTest, GenerateSpeculatesToTheSameEndAndSamplesByTheSeed) {
  const std::string generate =
      absl::StrCat("generate --model ", KVMESH_MODEL_DIR, " --prompt thesonofthesonofthesonof --max-tokens 24 --json ");
  const json plain = Object(generate);
  EXPECT_EQ(plain.at("draft_tokens"), 0);
  EXPECT_EQ(plain.at("samples"), json::array({{{"tokens", plain.at("tokens")}, {"text", plain.at("text")}}}));
  const json speculated = Object(generate + "--speculate 6");
  EXPECT_EQ(speculated.at("tokens"), plain.at("tokens"));
  EXPECT_GT(speculated.at("draft_tokens"), 0);
  EXPECT_LE(speculated.at("accepted_drafts"), speculated.at("draft_tokens"));

  const std::string drawn = generate + "--temperature 1.2 --top-k 50 --top-p 0.9 ";
  const std::string sampled = drawn + "--seed 7 ";
  const json three = Object(sampled + "--samples 3");
  ASSERT_EQ(three.at("samples").size(), 3u);
  EXPECT_EQ(three.at("samples")[0].at("tokens"), three.at("tokens"));
  EXPECT_EQ(three.at("samples")[0].at("text"), three.at("text"));
  EXPECT_NE(three.at("samples")[1], three.at("samples")[0]);
  EXPECT_EQ(Object(sampled + "--samples 3 --speculate 4").at("samples"), three.at("samples"));
  EXPECT_EQ(Object(sampled).at("tokens"), three.at("tokens"));
  EXPECT_NE(Object(drawn + "--seed 8").at("tokens"), three.at("tokens"));
}

TEST_F(CliClusterTest, SamplesOfAClusterAreThoseOfOneProcess) {
  const std::string sampled =
      " --prompt AndthekingsaidthekingsaidAndthekin --max-tokens 20 --json --temperature 1 "
      "--seed 3 --samples 4 --speculate 5";
  const json local = Object(absl::StrCat("generate --model ", KVMESH_MODEL_DIR, sampled));
  const json cluster = Object(absl::StrCat("generate ", at_, sampled));
  EXPECT_EQ(cluster.at("samples"), local.at("samples"));
  EXPECT_EQ(cluster.at("draft_tokens"), local.at("draft_tokens"));
  EXPECT_EQ(cluster.at("accepted_drafts"), local.at("accepted_drafts"));
  EXPECT_EQ(cluster.at("samples").size(), 4u);
  EXPECT_TRUE(cluster_.BooksAreClean());
}

TEST_F(CliTest, GenerateTakesAFormat) {
  const std::string generate = absl::StrCat("generate --model ", KVMESH_MODEL_DIR, " --prompt Inthebeginning --json ");
  const json fp32 = Object(generate + "--max-tokens 100");
  EXPECT_EQ(Object(generate + "--max-tokens 100 --kv-format fp32").at("tokens"), fp32.at("tokens"));
  const json int4 = Object(generate + "--max-tokens 100 --kv-format int4");
  EXPECT_EQ(int4.at("tokens").size(), 100u);
  EXPECT_NE(int4.at("tokens"), fp32.at("tokens"));
}

TEST_F(CliTest, EvalPrintsOneObjectWithTheFigures) {
  std::string ids;
  for (int i = 0; i < 300; ++i) absl::StrAppend(&ids, int{"In the beginning was the word. "[i % 31]}, " ");
  Write("text", ids);
  const std::string eval = absl::StrCat("eval --model ", KVMESH_MODEL_DIR, " --tokens-file FOLDER/text --json ");
  const json fp32 = Object(eval);
  EXPECT_THAT(KeysOf(fp32), UnorderedElementsAre("tokens", "mean_nll", "mean_nll_fp32", "max_abs_logit_diff"));
  EXPECT_EQ(fp32.at("tokens"), 300);
  EXPECT_EQ(fp32.at("mean_nll"), fp32.at("mean_nll_fp32"));
  EXPECT_EQ(fp32.at("max_abs_logit_diff"), 0);
  const json int8 = Object(eval + "--kv-format int8 --threads 2");
  EXPECT_EQ(int8.at("mean_nll_fp32"), fp32.at("mean_nll"));
  EXPECT_NE(int8.at("mean_nll"), int8.at("mean_nll_fp32"));
  EXPECT_GT(int8.at("max_abs_logit_diff"), 0);
  const json windows = Object(eval + "--window-tokens 100");
  EXPECT_NE(windows.at("mean_nll"), fp32.at("mean_nll"));
  const json streaming = Object(eval + "--policy sinks=4,window=60 --kv-format bf16");
  EXPECT_EQ(streaming.at("tokens"), 300);
  EXPECT_NE(streaming.at("mean_nll_fp32"), fp32.at("mean_nll"));
  EXPECT_GT(streaming.at("max_abs_logit_diff"), 0);
}

TEST_F(CliClusterTest, GenerateLookupAndStatsTellTheSameStory) {
  const std::string prompt = "AndtheLORDspakeuntoMosesandsaidunto";  // 35 bytes, a token each
  const std::string generate = absl::StrCat("generate ", at_, " --prompt ", prompt, " --max-tokens 6 --json");
  const json cold = Object(generate);
  EXPECT_EQ(cold.at("prompt_tokens"), 35);
  EXPECT_EQ(cold.at("computed_tokens"), 0);
  EXPECT_EQ(cold.at("worker"), cluster_.worker_id(0));
  EXPECT_EQ(cold.at("tokens").size(), 6u);
  json warm;
  ASSERT_TRUE(Await(kPatience, [&] { return (warm = Object(generate)).at("computed_tokens") == 32; })) << warm;
  EXPECT_EQ(warm.at("hits_by_tier"), json({{"device", 32}, {"host", 0}, {"disk", 0}, {"peer", 0}}));
  EXPECT_EQ(warm.at("tokens"), cold.at("tokens"));
  EXPECT_EQ(warm.at("text"), cold.at("text"));

  const auto identity = ClusterModelIdentity(cluster_.client());
  ASSERT_TRUE(identity.ok()) << identity.status();
  Write("identity.json", IdentityToJson(*identity));
  Write("tokens", absl::StrJoin(std::vector<int>(prompt.begin(), prompt.end()), " "));
  json found;
  ASSERT_TRUE(Await(kPatience, [&] {
    found = Object(absl::StrCat("lookup ", at_, " --identity FOLDER/identity.json --tokens-file FOLDER/tokens --json"));
    return found.at("matched_tokens") == 32;
  })) << found;
  EXPECT_EQ(found.at("prompt_tokens"), 35);
  EXPECT_EQ(found.at("workers"),
            json::array({{{"worker", cluster_.worker_id(0)}, {"device", 32}, {"memory", 32}, {"disk", 0}}}));
  EXPECT_EQ(found.at("placement").at("worker"), cluster_.worker_id(0));
  EXPECT_EQ(found.at("placement").at("predicted_hit_tokens"), 32);
  ASSERT_EQ(found.at("placement").at("reasons").size(), 1u);
  EXPECT_EQ(found.at("placement").at("reasons")[0].at("local_tokens"), 32);

  const json stats = Object(absl::StrCat("stats ", at_, " --json"));
  EXPECT_EQ(stats.at("workers_ready"), 1);
  EXPECT_GE(stats.at("distinct_blocks"), 2);
  EXPECT_GE(stats.at("actual_hit_tokens"), 32);
  EXPECT_EQ(stats.at("workers").at(0).at("worker"), cluster_.worker_id(0));
  EXPECT_EQ(stats.at("workers").at(0).at("state"), "ready");
}

TEST_F(CliClusterTest, WithoutJsonTheTextStandsAloneOnStandardOutput) {
  const std::string generate = absl::StrCat("generate ", at_, " --prompt AndtheLORD --max-tokens 6");
  const EndedProgram plain = Run(generate);
  EXPECT_EQ(plain.code, 0) << plain.error;
  EXPECT_EQ(plain.output, absl::StrCat(Object(generate + " --json").at("text").get<std::string>(), "\n"));
  EXPECT_THAT(plain.error, HasSubstr("10 prompt tokens"));
}

TEST_F(CliTest, ReplayGivesTheCountsOfItsTrace) {
  Write("trace", R"({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 10, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]}
)");
  const json out = Object("replay --trace FOLDER/trace --format mooncake --workers 1 --verify --json");
  EXPECT_THAT(KeysOf(out), UnorderedElementsAre("requests", "blocks", "hit_blocks", "hit_rate", "hits_by_tier",
                                                "bytes_verified", "mismatches", "seconds", "requests_by_worker"));
  EXPECT_EQ(out.at("requests"), 2);
  EXPECT_EQ(out.at("blocks"), 5);
  EXPECT_EQ(out.at("hit_blocks"), 2);
  EXPECT_EQ(out.at("hit_rate"), 0.4);
  EXPECT_EQ(out.at("hits_by_tier"), json({{"device", 2}, {"host", 0}, {"disk", 0}, {"peer", 0}}));
  EXPECT_EQ(out.at("bytes_verified"), 2 * 4096);
  EXPECT_EQ(out.at("mismatches"), 0);
}

TEST_F(CliTest, WrongUsageExitsWithTwoAndOneLineThatNamesTheFlag) {
  Write("trace", R"({"timestamp": 0, "output_length": 1, "hash_ids": [1]})");
  Write("words", "one two");
  Write("secret", "short");
  Write("one", "7");
  Write("large", "7 256");
  const std::string key = "key --identity FOLDER/identity.json ";
  const std::string lookup = "lookup --insecure --identity FOLDER/identity.json ";
  const std::string local = absl::StrCat("generate --model ", KVMESH_MODEL_DIR, " ");
  const std::string eval = absl::StrCat("eval --model ", KVMESH_MODEL_DIR, " ");
  const std::string text = eval + "--tokens-file FOLDER/tokens ";
  const std::string replay = "replay --trace FOLDER/trace --format mooncake ";
  const std::pair<std::string, std::string> lines[] = {
      {"key --tokens-file FOLDER/tokens", "--identity"},
      {key, "--tokens-file"},
      {key + "--tokens-file FOLDER/words", "--tokens-file"},
      {key + "--tokens-file FOLDER/absent", "--tokens-file"},
      {"key --identity FOLDER/tokens --tokens-file FOLDER/tokens", "--identity"},
      {key + "--tokens-file FOLDER/tokens --tenant-secret-file FOLDER/secret", "--tenant-secret-file"},
      {key + "--tokens-file FOLDER/tokens --cluster-secret-file FOLDER/absent", "--cluster-secret-file"},
      {lookup + "--tokens-file FOLDER/tokens", "--coordinator"},
      {lookup + "--coordinator 127.0.0.1:1", "--tokens-file"},
      {lookup + "--coordinator 127.0.0.1:1 --tokens-file FOLDER/words", "--tokens-file"},
      {"lookup --coordinator 127.0.0.1:1 --identity FOLDER/identity.json --tokens-file FOLDER/tokens", "--tls-cert"},
      {"generate --prompt x --max-tokens 3", "--coordinator"},
      {local + "--prompt x --max-tokens 3 --speculate 17", "--speculate"},
      {local + "--prompt x --max-tokens 3 --samples 0", "--samples"},
      {local + "--prompt x --max-tokens 3 --samples 33", "--samples"},
      {local + "--prompt x --max-tokens 3 --temperature -1", "--temperature"},
      {local + "--prompt x --max-tokens 3 --temperature nan", "--temperature"},
      {local + "--prompt x --max-tokens 3 --top-p 1.5", "--top-p"},
      {local + "--prompt x --max-tokens 3 --top-k -1", "--top-k"},
      {local + "--prompt x --max-tokens 3 --seed x", "--seed"},
      {local + "--insecure --coordinator 127.0.0.1:1 --prompt x --max-tokens 3", "--coordinator"},
      {local + "--prompt x", "--max-tokens"},
      {local + "--prompt x --max-tokens 0", "--max-tokens"},
      {local + "--prompt x --max-tokens 65537", "--max-tokens"},
      {local + "--prompt x --max-tokens 9000", "--max-tokens"},
      {local + "--max-tokens 3", "--prompt"},
      {local + "--prompt x --tokens 1 --max-tokens 3", "--tokens"},
      {local + "--tokens 256 --max-tokens 3", "--tokens: id 256"},
      {local + "--tokens 1,x --max-tokens 3", "--tokens"},
      {local + "--tokens-file FOLDER/words --max-tokens 3", "--tokens-file"},
      {local + "--worker w --prompt x --max-tokens 3", "--worker"},
      {local + "--kv-format q8 --prompt x --max-tokens 3", "--kv-format"},
      {"generate --insecure --coordinator 127.0.0.1:1 --kv-format int8 --prompt x --max-tokens 3", "--kv-format"},
      {"eval --tokens-file FOLDER/tokens", "--model"},
      {"eval --model FOLDER/absent --tokens-file FOLDER/tokens", "--model"},
      {eval, "--tokens-file"},
      {eval + "--tokens-file FOLDER/absent", "--tokens-file"},
      {eval + "--tokens-file FOLDER/words", "--tokens-file"},
      {eval + "--tokens-file FOLDER/one", "--tokens-file: fewer than 2"},
      {eval + "--tokens-file FOLDER/large", "--tokens-file: id 256"},
      {text + "--kv-format q8", "--kv-format"},
      {text + "--policy window=4", "--policy"},
      {text + "--policy sinks=4,window=8189", "--policy"},
      {text + "--window-tokens 0", "--window-tokens"},
      {text + "--window-tokens 8193", "--window-tokens"},
      {text + "--threads 0", "--threads"},
      {"generate --model FOLDER/absent --prompt x --max-tokens 3", "--model"},
      {"replay --trace FOLDER/trace", "--format"},
      {"replay --trace FOLDER/absent --format mooncake", "--trace"},
      {"replay --trace FOLDER/words --format mooncake", "--trace"},
      {"replay --trace FOLDER/trace --format other", "--format"},
      {replay + "--workers 0", "--workers"},
      {replay + "--workers many", "--workers"},
      {replay + "--capacity-blocks 1,2,3,4", "--capacity-blocks"},
      {replay + "--capacity-blocks -", "--capacity-blocks"},
      {replay + "--capacity-blocks few", "--capacity-blocks"},
      {replay + "--policy mru", "--policy"},
      {replay + "--route random", "--route"},
      {replay + "--block-bytes 0", "--block-bytes"},
      {replay + "--unknown 1", "--unknown"},
      {"stats --insecure", "--coordinator"},
      {"stats --coordinator 127.0.0.1:1", "--tls-cert"},
      {"up --workers 0", "--workers"},
      {"up --model FOLDER/absent", "--model"},
  };
  for (const auto& [line, flag] : lines) {
    const EndedProgram ended = Run(line);
    EXPECT_EQ(ended.code, 2) << line << "\n" << ended.error;
    EXPECT_EQ(ended.output, "") << line;
    EXPECT_THAT(ended.error, HasSubstr(flag)) << line;
    EXPECT_EQ(std::count(ended.error.begin(), ended.error.end(), '\n'), 1) << line << "\n" << ended.error;
  }
}

TEST_F(CliTest, HelpShowsDefaults) {
  const std::pair<std::string, std::string> programs[] = {{"kvmesh replay", "--block-bytes UINT=4096 "},
                                                          {"kvmesh-coordinator", "--listen TEXT=127.0.0.1:7400"},
                                                          {"kvmesh-worker", "--device-blocks UINT=4096 "}};
  for (const auto& [program, flag] : programs) {
    std::vector<std::string> argv = absl::StrSplit(absl::StrCat(KVMESH_BIN_DIR, "/", program, " --help"), ' ');
    const EndedProgram ended = RunProgram(folder_.path(), argv, kPatience);
    EXPECT_EQ(ended.code, 0) << program;
    std::string squeezed = ended.output;
    squeezed.erase(std::unique(squeezed.begin(), squeezed.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
                   squeezed.end());
    EXPECT_THAT(squeezed, HasSubstr(flag)) << program;
  }
}

// What waits for input or for an answer dies of the signal at once.
TEST_F(CliTest, SignalEndsCommandsThatWait) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const int number : {SIGINT, SIGTERM}) {
    auto key =
        ChildProcess::Start(Argv("key --identity FOLDER/identity.json --tokens-file FOLDER/fifo"), folder_ / "key.log");
    ASSERT_TRUE(key.ok()) << key.status();
    int fd = -1;  // can be opened once the program reads it
    ASSERT_TRUE(Await(kPatience, [&] { return (fd = open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0; }));
    (*key)->Signal(number);
    EXPECT_EQ((*key)->AwaitExit(kPatience), -number);
    close(fd);
  }
  for (const std::string& line :
       {std::string("stats --insecure"), std::string("generate --insecure --prompt x --max-tokens 3"),
        std::string("lookup --insecure --identity FOLDER/identity.json --tokens-file FOLDER/tokens")}) {
    for (const int number : {SIGINT, SIGTERM}) {
      SilentListener coordinator;
      auto command = ChildProcess::Start(Argv(absl::StrCat(line, " --coordinator ", coordinator.address())),
                                         folder_ / "command.log");
      ASSERT_TRUE(command.ok()) << command.status();
      ASSERT_TRUE(coordinator.AwaitCaller(kPatience)) << line << (*command)->LogTail();
      (*command)->Signal(number);
      EXPECT_EQ((*command)->AwaitExit(absl::Seconds(2)), -number) << line;
    }
  }
}

TEST_F(CliTest, SignalEndsAGenerationInThisProcess) {
  auto command =
      ChildProcess::Start(Argv(absl::StrCat("generate --model ", KVMESH_MODEL_DIR, " --prompt A --max-tokens 8000")),
                          folder_ / "log", folder_ / "text");
  ASSERT_TRUE(command.ok()) << command.status();
  std::error_code error;
  ASSERT_TRUE(Await(kPatience, [&] { return std::filesystem::file_size(folder_ / "text", error) > 0; }))
      << (*command)->LogTail();
  (*command)->Signal(SIGINT);
  EXPECT_EQ((*command)->AwaitExit(absl::Seconds(5)), -SIGINT);
}

TEST_F(CliTest, SignalEndsAReplayWhichRemovesItsFolder) {
  std::string trace;
  for (int i = 0; i < 20000; ++i) {
    absl::StrAppend(&trace, R"({"timestamp": )", i, R"(, "output_length": 1, "hash_ids": [)", 2 * i, ", ", 2 * i + 1,
                    "]}\n");
  }
  Write("trace", trace);
  const std::string scratch = folder_ / "scratch";
  ASSERT_TRUE(std::filesystem::create_directory(scratch));
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    ASSERT_EQ(setenv("TMPDIR", scratch.c_str(), 1), 0);
    auto command = ChildProcess::Start(
        Argv("replay --trace FOLDER/trace --format mooncake --capacity-blocks 64,-,0 --block-bytes 65536"),
        folder_ / "log", folder_ / "out");
    unsetenv("TMPDIR");
    ASSERT_TRUE(command.ok()) << command.status();
    ASSERT_TRUE(Await(kPatience, [&] { return !std::filesystem::is_empty(scratch); })) << (*command)->LogTail();
    (*command)->Signal(number);
    EXPECT_EQ((*command)->AwaitExit(absl::Seconds(10)), 128 + number) << (*command)->LogTail();
    EXPECT_TRUE(std::filesystem::is_empty(scratch));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out"));
}

TEST_F(CliTest, SignalEndsUpAndItsProcesses) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    auto command = ChildProcess::Start(Argv("up --workers 1"), folder_ / "log", folder_ / "out");
    ASSERT_TRUE(command.ok()) << command.status();
    const std::string children_file =
        absl::StrCat("/proc/", (*command)->pid(), "/task/", (*command)->pid(), "/children");
    std::vector<pid_t> children;
    ASSERT_TRUE(Await(kPatience, [&] {
      std::ifstream in(children_file);
      children.assign(std::istream_iterator<pid_t>(in), {});
      return children.size() == 2;
    })) << (*command)->LogTail();
    (*command)->Signal(number);
    EXPECT_EQ((*command)->AwaitExit(kPatience), 0) << (*command)->LogTail();
    for (const pid_t child : children) EXPECT_FALSE(std::filesystem::exists(absl::StrCat("/proc/", child)));
  }
}

}  // namespace
}  // namespace kvmesh
