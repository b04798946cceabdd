// A Transport with its peers in memory: what a ticket brings is scripted, and each misbehaviour can be had.
#ifndef KVMESH_TESTS_SUPPORT_FAKE_TRANSPORT_H_
#define KVMESH_TESTS_SUPPORT_FAKE_TRANSPORT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/base/mutex.h"
#include "tests/support/gate.h"
#include "worker/transport/transport.h"

namespace kvmesh {

// Blocks arrive while the receiver waits for progress. Thread safe. Fails the test when a transfer is released that is
// not quiescent, or none is left to release at the end.
class FakeTransport : public Transport {
 public:
  struct SentBlock {
    BlockHeader header;
    std::vector<std::byte> bytes;
  };
  // What one ticket brings of one layer group.
  struct Script {
    std::vector<SentBlock> blocks;
    absl::Status end;      // after the last block
    bool hangs = false;    // instead of ending
    bool lingers = false;  // not quiescent until LetQuiesce
  };

  explicit FakeTransport(std::string name = "fake") : name_(std::move(name)) {}
  ~FakeTransport() override { EXPECT_TRUE(transfers_.empty()) << transfers_.size() << " transfers never released"; }

  void Offer(const std::string& ticket, Script script, uint32_t group = 0) {
    MutexLock lock(mu_);
    scripts_[{ticket, group}] = std::move(script);
  }
  // The answer of every later Prepare, unless OK.
  void RefusePrepare(absl::Status status) {
    MutexLock lock(mu_);
    refusal_ = std::move(status);
  }
  // Called, without locks, whenever a receiver waits.
  void OnWait(std::function<void()> callback) {
    MutexLock lock(mu_);
    on_wait_ = std::move(callback);
  }
  // Bytes that come after the result: overwrites all targets of transfers that linger.
  void WriteLate() {
    MutexLock lock(mu_);
    for (auto& [id, transfer] : transfers_) {
      if (!transfer.script.lingers) continue;
      for (const std::span<std::byte> target : transfer.request.targets) {
        std::fill(target.begin(), target.end(), std::byte{0xee});
      }
    }
  }
  void LetQuiesce() {
    MutexLock lock(mu_);
    for (auto& [id, transfer] : transfers_) transfer.script.lingers = false;
    changed_.NotifyAll();
  }
  uint64_t posted() const {
    MutexLock lock(mu_);
    return posted_;
  }
  uint64_t cancelled() const {
    MutexLock lock(mu_);
    return cancelled_;
  }

  absl::string_view name() const override { return name_; }
  absl::Status RegisterMemory(const KvPoolView&) override { return absl::OkStatus(); }

  absl::StatusOr<TransferId> Prepare(TransferRequest request) override {
    MutexLock lock(mu_);
    if (!refusal_.ok()) return refusal_;
    const TransferId id(next_id_++);
    Transfer& transfer = transfers_[id];
    const auto script = scripts_.find({request.ticket, request.group});
    if (script == scripts_.end()) {
      transfer.script.end = absl::PermissionDeniedError("ticket: unknown, or served already");
    } else {
      transfer.script = std::move(script->second);
      scripts_.erase(script);
    }
    transfer.request = std::move(request);
    return id;
  }

  void Post(TransferId) override {
    MutexLock lock(mu_);
    ++posted_;
  }

  TransferProgress Poll(TransferId id, size_t seen) override {
    MutexLock lock(mu_);
    return ProgressOf(transfers_.at(id), seen);
  }

  TransferProgress WaitForProgress(TransferId id, size_t seen, absl::Duration timeout) override {
    wait_gate.Pass();
    std::function<void()> callback;
    {
      MutexLock lock(mu_);
      callback = on_wait_;
    }
    if (callback) callback();
    MutexLock lock(mu_);
    Transfer& transfer = transfers_.at(id);
    if (Deliver(transfer)) return ProgressOf(transfer, seen);
    const TransferProgress now = ProgressOf(transfer, seen);
    if (now.arrived.empty() && !now.quiescent) changed_.WaitFor(lock, timeout);
    return ProgressOf(transfer, seen);
  }

  void Cancel(TransferId id) override {
    MutexLock lock(mu_);
    Transfer& transfer = transfers_.at(id);
    if (!transfer.finished) {
      ++cancelled_;
      transfer.finished = true;
      transfer.result = absl::CancelledError("cancelled");
    }
    changed_.NotifyAll();
  }

  void Release(TransferId id) override {
    MutexLock lock(mu_);
    EXPECT_TRUE(ProgressOf(transfers_.at(id), 0).quiescent) << "released before it was quiescent";
    transfers_.erase(id);
  }

  // Receivers pass here when they wait.
  Gate wait_gate;

 private:
  struct Transfer {
    TransferRequest request;
    Script script;
    std::vector<BlockHeader> arrived;
    bool finished = false;
    absl::Status result;
  };

  // One more block, or the end. False: nothing happens any more.
  bool Deliver(Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (transfer.finished) return false;
    const size_t next = transfer.arrived.size();
    if (next < std::min(transfer.script.blocks.size(), transfer.request.targets.size())) {
      const SentBlock& block = transfer.script.blocks[next];
      const std::span<std::byte> target = transfer.request.targets[next];
      std::copy_n(block.bytes.begin(), std::min(block.bytes.size(), target.size()), target.begin());
      transfer.arrived.push_back(block.header);
      return true;
    }
    if (transfer.script.hangs) return false;
    transfer.finished = true;
    transfer.result = transfer.script.end;
    return true;
  }

  TransferProgress ProgressOf(const Transfer& transfer, size_t seen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TransferProgress progress;
    if (seen < transfer.arrived.size()) {
      progress.arrived.assign(transfer.arrived.begin() + static_cast<ptrdiff_t>(seen), transfer.arrived.end());
    }
    progress.finished = transfer.finished;
    progress.result = transfer.result;
    progress.quiescent = transfer.finished && !transfer.script.lingers;
    return progress;
  }

  const std::string name_;
  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::pair<std::string, uint32_t>, Script> scripts_ ABSL_GUARDED_BY(mu_);
  std::map<TransferId, Transfer> transfers_ ABSL_GUARDED_BY(mu_);
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_wait_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t posted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t cancelled_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_FAKE_TRANSPORT_H_
