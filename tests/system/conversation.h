// Prompts with shared prefixes, their right answers, and clients that ask for them without pause.
#ifndef KVMESH_TESTS_SYSTEM_CONVERSATION_H_
#define KVMESH_TESTS_SYSTEM_CONVERSATION_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "client/generate.h"
#include "kvstore/base/mutex.h"
#include "tests/support/process_cluster.h"

namespace kvmesh {

inline constexpr uint32_t kAnswerTokens = 8;
// Blocks of 16 tokens in the longest prompt and its answer.
inline constexpr int kLongestPromptBlocks = 34;

struct Prompt {
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> answer;  // the first kAnswerTokens
};

// Text of words: all prompts share the first 320 tokens, those of a conversation 80 more each turn.
std::vector<Prompt> MakePrompts(uint64_t seed, size_t conversations, size_t turns);

// Fills in the answers, by runs without cache on worker 0.
testing::AssertionResult ComputeAnswers(ProcessCluster& cluster, std::vector<Prompt>& prompts);

struct AskOptions {
  std::string salt;
  std::string worker_id;  // empty: the coordinator chooses
  absl::Duration timeout = absl::Seconds(20);
};
// Generates; INTERNAL when a token is wrong, also when the call then fails.
absl::StatusOr<ClusterGenerateResult> Ask(ProcessCluster& cluster, const Prompt& prompt, const AskOptions& options);
// Straight to worker i, without the coordinator.
absl::StatusOr<std::vector<uint32_t>> AskDirectly(ProcessCluster& cluster, size_t i, const Prompt& prompt,
                                                  const std::string& salt);

// Clients that ask random workers for random prompts until Stop. A wrong token, a call that outlives its deadline, or
// an error that no fault explains is a failure.
class Load {
 public:
  Load(ProcessCluster& cluster, const std::vector<Prompt>& prompts, std::string salt, size_t threads, uint64_t seed);
  ~Load() { Stop(); }

  // Waits for the clients; the failures, one a line.
  std::string Stop();
  // Calls that ended well.
  uint64_t answered() const { return answered_; }

 private:
  void Run(uint64_t seed);

  ProcessCluster& cluster_;
  const std::vector<Prompt>& prompts_;
  const std::string salt_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> answered_{0};
  Mutex mu_;
  std::string failures_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SYSTEM_CONVERSATION_H_
