// Resume of a prompt whose blocks are all on the device: latency from tokens, or from keys, to pinned block table.
//
//   open    what OpenSequence does in process: keys from tokens, Resumer, block table. Probe: the same key chain and
//           one hash map lookup per key.
//   resume  Resumer alone, keys given. Probe: one hash map lookup per key under one lock.
// The sequence's end (unpinning) is not timed on either side.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/key_chain.h"
#include "tests/bench/bench_cluster.h"
#include "tests/bench/bench_support.h"
#include "worker/engine/sequence.h"

namespace kvmesh {
namespace {

constexpr std::array<size_t, 3> kPrompts = {64, 1024, 8192};  // tokens
constexpr size_t kOtherChains = 16;                           // beside the prompt, so that the map is not tiny

// A worker without a server that holds the prompt, and the probe's map of the same keys.
class ResumeWorld {
 public:
  explicit ResumeWorld(size_t prompt_tokens)
      : root_(BenchRoot(BenchIdentity("resume"))), tokens_(RandomTokens(0, prompt_tokens, 32000)) {
    WorkerOptions options = BenchWorkerOptions("resume");
    options.layout = TinyLayout();
    options.device_blocks = 65536;
    core_ = Must(WorkerCore::Create(options, NewIncarnation(RandomSource::Real()), {}));
    chain_ = {ChainGroup(core_->store())};
    keys_ = ComputeBlockKeys(RootAsParent(root_), tokens_, kBenchBlockTokens);
    Hold(keys_);
    for (uint32_t i = 1; i <= kOtherChains; ++i) {
      Hold(ComputeBlockKeys(RootAsParent(root_), RandomTokens(i, kPrompts.back(), 32000), kBenchBlockTokens));
    }
  }

  // Each returns the seconds of one operation.
  double Open() {
    const double start = SecondsNow();
    auto sequence = std::make_unique<Sequence>(chain_, root_, true, tokens_);
    sequence->Adopt(core_->resumer().Resume(Request(sequence->keys())));
    const std::vector<uint32_t> table = sequence->table(0).ids();
    const double seconds = SecondsNow() - start;
    CheckFound(table.size());
    return seconds;
  }
  double OpenProbe() {
    const double start = SecondsNow();
    const std::vector<uint32_t> tokens = tokens_;
    const std::vector<uint32_t> table = LookUp(ComputeBlockKeys(RootAsParent(root_), tokens, kBenchBlockTokens));
    const double seconds = SecondsNow() - start;
    CheckFound(table.size());
    return seconds;
  }
  double Resume() {
    const double start = SecondsNow();
    const ResumeResult result = core_->resumer().Resume(Request(keys_));
    const double seconds = SecondsNow() - start;
    CheckFound(result.blocks());
    return seconds;
  }
  double ResumeProbe() {
    const double start = SecondsNow();
    const std::vector<uint32_t> table = LookUp(keys_);
    const double seconds = SecondsNow() - start;
    CheckFound(table.size());
    return seconds;
  }

 private:
  void Hold(const std::vector<BlockKey>& keys) {
    SealChain(core_->store(), root_, keys);
    MutexLock lock(mu_);
    for (const BlockKey& key : keys) held_.emplace(key, static_cast<uint32_t>(held_.size()));
  }
  ResumeRequest Request(std::span<const BlockKey> keys) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    return {.groups = chain_,
            .root = root_,
            .keys = keys,
            .tokens = tokens_.size(),
            .deadline = deadline,
            .sibling_deadline = deadline};
  }
  std::vector<uint32_t> LookUp(const std::vector<BlockKey>& keys) {
    std::vector<uint32_t> table;
    table.reserve(keys.size());
    MutexLock lock(mu_);
    for (const BlockKey& key : keys) {
      const auto it = held_.find(key);
      if (it == held_.end()) break;
      table.push_back(it->second);
    }
    return table;
  }
  void CheckFound(size_t blocks) const {
    if (blocks != keys_.size()) Must(absl::InternalError(absl::StrCat("found ", blocks, " of ", keys_.size())));
  }

  const RootKey root_;
  const std::vector<uint32_t> tokens_;
  std::vector<BlockKey> keys_;
  std::unique_ptr<WorkerCore> core_;
  std::vector<CacheGroup> chain_;
  Mutex mu_;
  absl::flat_hash_map<BlockKey, uint32_t> held_ ABSL_GUARDED_BY(mu_);
};

// p50 and p99 of `operation`, repeated for a window.
template <class Operation>
Sample Latencies(absl::Duration window, Operation operation) {
  std::vector<double> seconds;
  const double end = SecondsNow() + absl::ToDoubleSeconds(window);
  while (seconds.size() < 20 || SecondsNow() < end) seconds.push_back(operation());
  return {Percentile(seconds, 0.5), Percentile(seconds, 0.99)};
}

int Run(const BenchOptions& options) {
  Report report("resume_bench", options);
  const absl::Duration window = options.window(absl::Milliseconds(100));
  const int rounds = options.rounds(11);
  for (const size_t prompt : kPrompts) {
    ResumeWorld world(prompt);
    const Comparison open = Alternate(
        rounds, [&] { return Latencies(window, [&] { return world.Open(); }); },
        [&] { return Latencies(window, [&] { return world.OpenProbe(); }); });
    report.Add(absl::StrCat("open ", prompt, " tokens, p50"), "us", 1e6, "key chain + map lookups", open, 0);
    report.Add(absl::StrCat("open ", prompt, " tokens, p99"), "us", 1e6, "key chain + map lookups", open, 1);
    const Comparison resume = Alternate(
        rounds, [&] { return Latencies(window, [&] { return world.Resume(); }); },
        [&] { return Latencies(window, [&] { return world.ResumeProbe(); }); });
    report.Add(absl::StrCat("resume ", prompt, " tokens, p50"), "us", 1e6, "map lookups", resume, 0);
    report.Add(absl::StrCat("resume ", prompt, " tokens, p99"), "us", 1e6, "map lookups", resume, 1);
  }
  return report.Finish();
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  return kvmesh::Run(kvmesh::ParseBenchOptions(argc, argv, "Latency of resuming a prompt that the device holds"));
}
