// The inverse of MutexLock, for functions that are handed a held lock.
#ifndef KVMESH_KVSTORE_BASE_MUTEX_UNLOCK_H_
#define KVMESH_KVSTORE_BASE_MUTEX_UNLOCK_H_

#include "kvstore/base/mutex.h"

// Abseil's ABSL_UNLOCK_FUNCTION leaves open which kind of hold is released; a scope that takes it again must say.
#if defined(__clang__)
#define KVMESH_EXCLUSIVE_UNLOCK_FUNCTION(...) __attribute__((release_capability(__VA_ARGS__)))
#else
#define KVMESH_EXCLUSIVE_UNLOCK_FUNCTION(...)
#endif

namespace kvmesh {

// Releases a mutex for a scope and takes it again. REQUIRES: `lock` holds `mu`, which is named for clang's analysis: it
// can't see whose lock a parameter is.
class ABSL_SCOPED_LOCKABLE MutexUnlock {
 public:
  MutexUnlock([[maybe_unused]] Mutex& mu, MutexLock& lock) KVMESH_EXCLUSIVE_UNLOCK_FUNCTION(mu) : lock_(lock) {
    lock_.Unlock();
  }
  ~MutexUnlock() KVMESH_EXCLUSIVE_UNLOCK_FUNCTION() { lock_.Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  MutexLock& lock_;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BASE_MUTEX_UNLOCK_H_
