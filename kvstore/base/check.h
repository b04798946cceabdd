// Programming errors abort with the condition, file and line; they are never statuses.
#ifndef KVMESH_KVSTORE_BASE_CHECK_H_
#define KVMESH_KVSTORE_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define KVMESH_CHECK(condition, message)                                                              \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, message); \
      std::abort();                                                                                   \
    }                                                                                                 \
  } while (false)

#endif  // KVMESH_KVSTORE_BASE_CHECK_H_
