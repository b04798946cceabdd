#include "worker/model/parallel_for.h"

#include <algorithm>
#include <atomic>

#include "kvstore/base/mutex.h"

namespace kvmesh {
namespace {

// One call of Run. Helpers share it: one that starts late finds no part left, and never touches `work`.
struct Call {
  const int64_t parts;
  const std::function<void(int64_t)>* const work;
  std::atomic<int64_t> next{0};
  Mutex mu;
  CondVar ended;
  int64_t done ABSL_GUARDED_BY(mu) = 0;

  Call(int64_t parts, const std::function<void(int64_t)>* work) : parts(parts), work(work) {}

  // Takes parts until none is left.
  void Help() {
    int64_t mine = 0;
    for (int64_t part = next.fetch_add(1); part < parts; part = next.fetch_add(1)) {
      (*work)(part);
      ++mine;
    }
    if (mine == 0) return;
    MutexLock lock(mu);
    done += mine;
    if (done == parts) ended.NotifyAll();
  }
};

}  // namespace

ParallelRunner::ParallelRunner(int32_t threads) : threads_(threads) {
  if (threads > 1) pool_ = std::make_unique<ThreadPool>(static_cast<size_t>(threads) - 1);
}

void ParallelRunner::Run(int64_t parts, const std::function<void(int64_t)>& work) {
  const int64_t helpers = std::min<int64_t>(threads_, parts) - 1;
  if (helpers <= 0) {
    for (int64_t part = 0; part < parts; ++part) work(part);
    return;
  }
  const auto call = std::make_shared<Call>(parts, &work);
  for (int64_t i = 0; i < helpers; ++i) pool_->Schedule([call] { call->Help(); });
  call->Help();
  MutexLock lock(call->mu);
  while (call->done < call->parts) call->ended.Wait(lock);
}

}  // namespace kvmesh
