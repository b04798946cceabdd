// Runs the parts of a computation on a fixed number of threads.
#ifndef KVMESH_WORKER_MODEL_PARALLEL_FOR_H_
#define KVMESH_WORKER_MODEL_PARALLEL_FOR_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "kvstore/base/executor.h"

namespace kvmesh {

// Thread safe: several callers may run at once and share the threads; none waits for another's parts to begin.
class ParallelRunner {
 public:
  // The caller of Run is one of the threads, so 1 starts none. REQUIRES: threads >= 1.
  explicit ParallelRunner(int32_t threads);

  // Calls work(0) .. work(parts - 1), each once, in no order, at most `threads` at a time; returns when all have ended.
  // `work` must not throw.
  void Run(int64_t parts, const std::function<void(int64_t)>& work);

  int32_t threads() const { return threads_; }

 private:
  const int32_t threads_;
  std::unique_ptr<ThreadPool> pool_;  // threads_ - 1 threads; null when that is none
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_PARALLEL_FOR_H_
