#include "worker/report/log_watcher.h"

#include <utility>

namespace kvmesh {

LogWatcher::LogWatcher(EventLog& log, std::function<void()> on_events)
    : log_(log), on_events_(std::move(on_events)), thread_([this] { Run(); }) {}

LogWatcher::~LogWatcher() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  log_.Wake();
  thread_.join();
}

void LogWatcher::Arm(uint64_t cursor) {
  {
    MutexLock lock(mu_);
    armed_ = cursor;
  }
  changed_.NotifyAll();
}

void LogWatcher::Run() {
  MutexLock lock(mu_);
  while (!stopping_) {
    if (!armed_) {
      changed_.Wait(lock);
      continue;
    }
    const uint64_t cursor = *armed_;
    lock.Unlock();
    log_.WaitAfter(cursor, kMaxWait);
    const bool news = log_.last() > cursor;
    lock.Lock();
    if (!news || armed_ != cursor || stopping_) continue;
    armed_.reset();
    lock.Unlock();
    on_events_();
    lock.Lock();
  }
}

}  // namespace kvmesh
