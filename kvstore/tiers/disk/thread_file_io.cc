// Reads with a fixed set of threads, for kernels that refuse io_uring.
#include <algorithm>
#include <atomic>

#include "kvstore/base/executor.h"
#include "kvstore/base/mutex.h"
#include "kvstore/tiers/disk/posix_file_io.h"

namespace kvmesh {
namespace {

// One batch: threads take indices until none is left, and the caller waits for the last helper.
class Batch {
 public:
  Batch(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done, size_t helpers)
      : ops_(ops), done_(done), running_(helpers) {}

  template <class ReadFn>
  void Work(ReadFn read) {
    for (size_t i = next_.fetch_add(1); i < ops_.size(); i = next_.fetch_add(1)) {
      read(ops_[i]);
      done_(i);
    }
  }
  void HelperDone() {
    MutexLock lock(mu_);
    if (--running_ == 0) idle_.NotifyAll();
  }
  void WaitForHelpers() {
    MutexLock lock(mu_);
    while (running_ != 0) idle_.Wait(lock);
  }

 private:
  const std::span<ReadOp> ops_;
  const absl::FunctionRef<void(size_t)> done_;
  std::atomic<size_t> next_{0};
  Mutex mu_;
  CondVar idle_;
  size_t running_ ABSL_GUARDED_BY(mu_);
};

class ThreadFileIo : public PosixFileIo {
 public:
  explicit ThreadFileIo(size_t threads) : threads_(threads), pool_(threads) {}

  void Read(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done) override {
    if (ops.empty()) return;
    const size_t helpers = std::min(ops.size() - 1, threads_);
    Batch batch(ops, done, helpers);
    for (size_t i = 0; i < helpers; ++i) {
      pool_.Schedule([&batch] {
        batch.Work(&ReadOne);
        batch.HelperDone();
      });
    }
    batch.Work(&ReadOne);
    batch.WaitForHelpers();
  }

 private:
  const size_t threads_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<FileIo> NewThreadFileIo(size_t threads) {
  return std::make_unique<ThreadFileIo>(std::max<size_t>(threads, 1));
}

}  // namespace kvmesh
