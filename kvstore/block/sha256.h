// One SHA-256 over several pieces, without OpenSSL's per-digest set-up: EVP costs more than hashing a block's tokens.
#ifndef KVMESH_KVSTORE_BLOCK_SHA256_H_
#define KVMESH_KVSTORE_BLOCK_SHA256_H_

#include <openssl/sha.h>

#include <cstddef>
#include <cstdint>

namespace kvmesh {

// OpenSSL 3 marks the low-level calls deprecated in favour of EVP.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// Use once: any number of Update, then Final. Not thread safe.
class Sha256Stream {
 public:
  Sha256Stream() { SHA256_Init(&context_); }
  void Update(const void* data, size_t size) { SHA256_Update(&context_, data, size); }
  // Writes the 32-byte digest to `out`.
  void Final(uint8_t* out) { SHA256_Final(out, &context_); }

 private:
  SHA256_CTX context_;
};

#pragma GCC diagnostic pop

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_SHA256_H_
