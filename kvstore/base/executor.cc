#include "kvstore/base/executor.h"

#include <utility>

#include "kvstore/base/check.h"

namespace kvmesh {

ThreadPool::ThreadPool(size_t threads) {
  KVMESH_CHECK(threads >= 1, "a pool without threads would run nothing");
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Schedule(std::function<void()> work) {
  {
    MutexLock lock(mu_);
    queue_.push_back(std::move(work));
  }
  wake_.NotifyOne();
}

void ThreadPool::Run() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !stopping_) wake_.Wait(lock);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace kvmesh
