#include "kvstore/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace kvmesh {
namespace {

class KernelRandom : public RandomSource {
 public:
  void Fill(void* out, size_t size) override {
    auto* bytes = static_cast<char*>(out);
    while (size > 0) {
      const ssize_t got = getrandom(bytes, size, 0);
      if (got < 0) {
        if (errno == EINTR) continue;
        std::perror("getrandom");
        std::abort();
      }
      bytes += got;
      size -= static_cast<size_t>(got);
    }
  }
};

}  // namespace

RandomSource& RandomSource::Real() {
  static KernelRandom* const random = new KernelRandom();
  return *random;
}

Incarnation NewIncarnation(RandomSource& random) {
  Incarnation incarnation;
  do {
    random.Fill(incarnation.bytes.data(), incarnation.bytes.size());
  } while (incarnation.IsZero());
  return incarnation;
}

}  // namespace kvmesh
