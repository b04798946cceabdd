// Argument checks of the kernels: a broken REQUIRES is a programming error and ends the process with a message.
#ifndef KVMESH_KERNELS_CHECK_H_
#define KVMESH_KERNELS_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace kvmesh {

// Aborts after printing "kvmesh kernels: <what>" unless `ok`.
inline void Require(bool ok, const char* what) {
  if (!ok) [[unlikely]] {
    std::fprintf(stderr, "kvmesh kernels: %s\n", what);
    std::abort();
  }
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_CHECK_H_
