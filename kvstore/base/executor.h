// Runs closures elsewhere: a fixed set of threads in production, whatever a test wants in tests.
#ifndef KVMESH_KVSTORE_BASE_EXECUTOR_H_
#define KVMESH_KVSTORE_BASE_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kvstore/base/mutex.h"

namespace kvmesh {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` once, on another thread or at once. Never drops it.
  virtual void Schedule(std::function<void()> work) = 0;
};

// `threads` threads over one queue. The destructor runs what is queued, then joins. The queue is bounded by the
// callers: every caller schedules a bounded number of closures at a time. REQUIRES: threads >= 1.
class ThreadPool : public Executor {
 public:
  explicit ThreadPool(size_t threads);
  ~ThreadPool() override;
  void Schedule(std::function<void()> work) override;

 private:
  void Run();

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BASE_EXECUTOR_H_
