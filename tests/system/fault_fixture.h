// What the fault tests share: a cluster, prompts with known answers, rounds under a printed seed, and the settling
// checks after each fault.
#ifndef KVMESH_TESTS_SYSTEM_FAULT_FIXTURE_H_
#define KVMESH_TESTS_SYSTEM_FAULT_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"
#include "tests/system/conversation.h"

namespace kvmesh {

inline uint64_t NumberFromEnv(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// KVMESH_FAULT_ROUNDS rounds of each fault, from KVMESH_FAULT_SEED on.
class FaultTest : public testing::Test {
 protected:
  static constexpr size_t kLoadThreads = 3;
  // Bytes of one prompt's blocks are several times this: a fault strikes inside the payload.
  static constexpr uint64_t kIntoTheFetch = 100'001;

  FaultTest() : rounds_(NumberFromEnv("KVMESH_FAULT_ROUNDS", 5)), seed_(NumberFromEnv("KVMESH_FAULT_SEED", 1)) {
    std::printf("KVMESH_FAULT_ROUNDS=%lu KVMESH_FAULT_SEED=%lu\n", rounds_, seed_);
  }

  void StartCluster(std::vector<WorkerConfig> workers) {
    cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = std::move(workers)});
    ASSERT_TRUE(cluster_->Start());
    prompts_ = MakePrompts(seed_, 3, 3);
    ASSERT_TRUE(ComputeAnswers(*cluster_, prompts_));
  }

  // Worker 0 sits behind a proxy; memory is too small for all prompts of all salts, so that blocks move to disk.
  static std::vector<WorkerConfig> ThreeWorkers() {
    WorkerConfig worker{.device_blocks = 200, .host_blocks = 40, .disk = true};
    std::vector<WorkerConfig> workers(3, worker);
    workers[0].proxied = true;
    return workers;
  }

  struct Round {
    uint64_t number;
    std::string salt;  // of this round alone
    const Prompt& prompt;
  };
  struct Frame {
    std::string name;
    size_t restarted;  // the worker whose disk must serve after a restart, at the end
    bool load = true;  // from the beginning of a round
  };
  // Three workers. In each round worker 0 holds the round's prompt, `fault` strikes under load, and all settles.
  void RunRounds(const Frame& frame, const std::function<void(const Round&)>& fault) {
    ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
    for (uint64_t i = 0; i < rounds_; ++i) {
      SCOPED_TRACE(absl::StrCat("round ", i));
      const Round round{i, absl::StrCat(frame.name, " ", i), prompts_[i % prompts_.size()]};
      if (frame.load) BeginLoad(i);
      ASSERT_NO_FATAL_FAILURE(Fill(0, round.prompt, round.salt));
      ASSERT_NO_FATAL_FAILURE(fault(round));
      ASSERT_NO_FATAL_FAILURE(Settle());
    }
    ExpectDiskServesAfterRestart(frame.restarted);
  }

  void BeginLoad(uint64_t round) {
    load_ = std::make_unique<Load>(*cluster_, prompts_, "load", kLoadThreads, seed_ * 100 + round);
  }

  // Asks a worker that is up. The client's connection to one that has just come back may take its back-off of a second
  // to do so too; until then the answer is UNAVAILABLE, and nothing else is.
  absl::StatusOr<ClusterGenerateResult> AskUp(size_t worker, const Prompt& prompt, const std::string& salt) {
    absl::StatusOr<ClusterGenerateResult> answer;
    Await(absl::Seconds(3), [&] {
      answer = Ask(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(worker)});
      return !absl::IsUnavailable(answer.status());
    });
    return answer;
  }

  // Worker `from` computes the prompt under `salt`, and the coordinator knows it.
  void Fill(size_t from, const Prompt& prompt, const std::string& salt) {
    const auto filled = AskUp(from, prompt, salt);
    ASSERT_TRUE(filled.ok()) << filled.status();
    AwaitHolder(from, prompt, salt);
  }

  // The coordinator's index has all full blocks of the prompt on the worker.
  void AwaitHolder(size_t from, const Prompt& prompt, const std::string& salt) {
    absl::StatusOr<CacheIdentity> identity = ClusterModelIdentity(cluster_->client());
    ASSERT_TRUE(identity.ok()) << identity.status();
    identity->cache_salt = salt;
    const uint64_t full = prompt.tokens.size() / 16 * 16;
    ASSERT_TRUE(Await(absl::Seconds(10),
                      [&] {
                        const auto route = cluster_->client().Route(*identity, prompt.tokens, {.top_k = 64});
                        if (!route.ok()) return false;
                        for (const v1::Holder& holder : route->holders()) {
                          if (holder.worker_id() != cluster_->worker_id(from)) continue;
                          if (std::max({holder.device_tokens(), holder.memory_tokens(), holder.disk_tokens()}) >= full)
                            return true;
                        }
                        return false;
                      }))
        << cluster_->worker_id(from) << " is not known to hold the prompt";
  }

  // The end of each round: the load saw nothing wrong, all workers are back, each answers rightly, nothing is left in
  // the books, and the index is what the workers hold.
  void Settle() {
    if (load_ != nullptr) {
      EXPECT_EQ(load_->Stop(), "");
      EXPECT_GT(load_->answered(), 0u);
      load_.reset();
    }
    ASSERT_TRUE(cluster_->AwaitAllReady());
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const auto answer = AskUp(i % cluster_->size(), prompts_[i], "load");
      ASSERT_TRUE(answer.ok()) << "prompt " << i << ": " << answer.status();
    }
    ASSERT_TRUE(cluster_->BooksAreClean());
    ASSERT_TRUE(cluster_->IndexEqualsWorkers());
  }

  // What worker i holds survives its restart on disk.
  void ExpectDiskServesAfterRestart(size_t i) {
    Fill(i, prompts_.back(), "disk");
    ASSERT_TRUE(cluster_->RestartGently(i));
    const auto answer = AskUp(i, prompts_.back(), "disk");
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(answer->hits.disk(), 0u) << answer->hits.ShortDebugString();
  }

  const uint64_t rounds_;
  const uint64_t seed_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::vector<Prompt> prompts_;
  std::unique_ptr<Load> load_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SYSTEM_FAULT_FIXTURE_H_
