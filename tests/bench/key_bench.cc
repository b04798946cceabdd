// Block keys: nanoseconds per block of a prompt's chain.
//
// Probes over the same bytes, OpenSSL's low-level SHA-256: one digest per block over its parent key and tokens, laid
// out beforehand; and one digest over the whole prompt, the floor of any scheme that reads all tokens.
#include <openssl/sha.h>

#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"
#include "tests/bench/bench_support.h"

namespace kvmesh {
namespace {

constexpr size_t kPromptTokens = 16384;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void BareSha256(const void* data, size_t size, uint8_t* out) {
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, data, size);
  SHA256_Final(out, &context);
}
#pragma GCC diagnostic pop

// What each block's key hashes, one after the other.
std::vector<uint8_t> HashedBytes(const BlockKey& root, const std::vector<uint32_t>& tokens, uint32_t block_tokens) {
  std::vector<uint8_t> out;
  BlockKey parent = root;
  const std::vector<BlockKey> keys = ComputeBlockKeys(root, tokens, block_tokens);
  for (size_t i = 0; i < keys.size(); ++i) {
    out.insert(out.end(), parent.bytes.begin(), parent.bytes.end());
    const auto* const block = reinterpret_cast<const uint8_t*>(tokens.data() + i * block_tokens);
    out.insert(out.end(), block, block + block_tokens * sizeof(uint32_t));
    parent = keys[i];
  }
  return out;
}

void RunBlockSize(const BenchOptions& options, uint32_t block_tokens, Report& report) {
  std::mt19937 random(1);
  std::vector<uint32_t> tokens(kPromptTokens);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random());
  const BlockKey root{{1, 2, 3}};
  const double blocks = static_cast<double>(kPromptTokens / block_tokens);
  const size_t stride = BlockKey::kSize + block_tokens * sizeof(uint32_t);
  const std::vector<uint8_t> bytes = HashedBytes(root, tokens, block_tokens);
  const absl::Duration window = options.window(absl::Milliseconds(100));

  uint8_t digest[SHA256_DIGEST_LENGTH];
  BlockKey last;
  const auto chain = [&]() -> Sample {
    return {SecondsPerCall(window, [&] { last = ComputeBlockKeys(root, tokens, block_tokens).back(); }) / blocks};
  };
  const auto per_block = [&]() -> Sample {
    const double seconds = SecondsPerCall(window, [&] {
      for (size_t at = 0; at < bytes.size(); at += stride) BareSha256(bytes.data() + at, stride, digest);
    });
    return {seconds / blocks};
  };
  const auto whole = [&]() -> Sample {
    return {SecondsPerCall(window, [&] { BareSha256(bytes.data(), bytes.size(), digest); }) / blocks};
  };
  const std::string name = absl::StrCat("chain, ", block_tokens, "-token block");
  report.Add(name, "ns/block", 1e9, "SHA-256 per block", Alternate(options.rounds(15), chain, per_block));
  per_block();
  if (std::memcmp(digest, last.bytes.data(), last.bytes.size()) != 0) {
    Must(absl::InternalError("the probe hashes other bytes than the chain"));
  }
  report.Add(name, "ns/block", 1e9, "one SHA-256 over all", Alternate(options.rounds(9), chain, whole));
}

int Run(const BenchOptions& options) {
  Report report("key_bench", options);
  for (const uint32_t block_tokens : {16u, 512u}) RunBlockSize(options, block_tokens, report);
  return report.Finish();
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  return kvmesh::Run(kvmesh::ParseBenchOptions(argc, argv, "Key chain against bare SHA-256"));
}
