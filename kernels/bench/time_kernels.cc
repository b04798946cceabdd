// Times append and attention on one core. Built by the stand-alone build only; prints one line per shape, beside a
// read of as many bytes of memory as the probe.
//   time_kernels [seconds per shape, default 0.5]
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/block_checksum.h"
#include "kernels/paged_attention.h"
#include "kernels/reshape_and_cache.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

struct Shape {
  const char* name;
  KvFormat format;
  int32_t layers;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int64_t tokens;   // in the cache after the call
  int64_t queries;  // the last ones of them, per call; prefill runs all tokens in calls of this many
  bool prefill;
};

constexpr Shape kShapes[] = {
    {"prefill small fp32", KvFormat::kF32, 4, 4, 2, 32, 4096, 64, true},
    {"prefill small fp32, one call", KvFormat::kF32, 4, 4, 2, 32, 4096, 4096, true},
    {"prefill small bf16", KvFormat::kBf16, 4, 4, 2, 32, 4096, 64, true},
    {"prefill tiny fp32", KvFormat::kF32, 5, 8, 4, 8, 4096, 64, true},
    {"prefill 1B-like bf16, a layer", KvFormat::kBf16, 1, 32, 8, 64, 4096, 256, true},
    {"prefill 8B-like bf16, a layer", KvFormat::kBf16, 1, 32, 8, 128, 4096, 256, true},
    {"decode small fp32", KvFormat::kF32, 4, 4, 2, 32, 4096, 1, false},
    {"decode small bf16", KvFormat::kBf16, 4, 4, 2, 32, 4096, 1, false},
    {"decode 8B-like fp32, a layer", KvFormat::kF32, 1, 32, 8, 128, 16384, 1, false},
    {"decode 8B-like bf16, a layer", KvFormat::kBf16, 1, 32, 8, 128, 16384, 1, false},
    {"decode MHA bf16, a layer", KvFormat::kBf16, 1, 8, 8, 128, 16384, 1, false},
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds per call of `body`, the best of several calls.
template <class Body>
double Best(double seconds, Body body) {
  const double end = Now() + seconds;
  double best = 1e30;
  do {
    const double begin = Now();
    body();
    best = std::min(best, Now() - begin);
  } while (Now() < end);
  return best;
}

std::vector<float> RandomFloats(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

void Time(const Shape& shape, double seconds) {
  constexpr int32_t kBlockTokens = 16;
  const BlockLayout layout = CanonicalLayout(shape.format, shape.layers, shape.kv_heads, kBlockTokens, shape.head_dim);
  std::vector<uint32_t> table(static_cast<size_t>(shape.tokens) / kBlockTokens);
  std::iota(table.begin(), table.end(), 0u);
  std::vector<std::byte> bytes(table.size() * static_cast<size_t>(layout.block_bytes));
  const KvPoolView pool{bytes.data(), layout.block_bytes, static_cast<int64_t>(table.size()), layout};

  std::vector<int64_t> slots(static_cast<size_t>(shape.tokens));
  std::iota(slots.begin(), slots.end(), int64_t{0});
  const std::vector<float> kv = RandomFloats(slots.size() * shape.kv_heads * shape.head_dim);
  const double append = Best(0, [&] {
    for (int32_t layer = 0; layer < shape.layers; ++layer) ReshapeAndCache(kv, kv, slots, layer, pool);
  });

  const std::vector<float> query = RandomFloats(static_cast<size_t>(shape.queries) * shape.q_heads * shape.head_dim);
  std::vector<float> out(query.size());
  const AttentionParams params{.q_heads = shape.q_heads, .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim))};
  const double attend = Best(seconds, [&] {
    for (int64_t at = shape.prefill ? 0 : shape.tokens - shape.queries; at < shape.tokens; at += shape.queries) {
      const AttentionSequence sequence{table, at, shape.queries};
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        PagedAttention(query, {&sequence, 1}, layer, params, pool, out);
      }
    }
  });

  // The probe: a plain sum over the same bytes.
  volatile uint64_t sink = 0;
  const double read = Best(seconds / 4, [&] {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(bytes.data());
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes.size() / 8; ++i) sum += words[i];
    sink = sink + sum;
  });

  const double pairs = shape.prefill ? 0.5 * shape.tokens * (shape.tokens + 1) : 1.0 * shape.tokens;
  const double flop = 4.0 * pairs * shape.q_heads * shape.head_dim * shape.layers;
  std::printf("%-30s append %8.3f ms  attention %9.3f ms  %6.1f Gflop/s  %6.2f GB/s of cache  read probe %6.2f GB/s\n",
              shape.name, append * 1e3, attend * 1e3, flop / attend * 1e-9, bytes.size() / attend * 1e-9,
              bytes.size() / read * 1e-9);
}

void TimeChecksum(double seconds) {
  const std::vector<std::byte> payload(size_t{4} << 20, std::byte{1});
  volatile uint64_t sink = 0;
  const double took = Best(seconds, [&] { sink = sink ^ BlockChecksum({}, payload); });
  std::printf("%-30s %6.2f GB/s\n", "checksum, 4 MiB", payload.size() / took * 1e-9);
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  std::printf("variant %s\n", std::string(kvmesh::KernelVariantName(kvmesh::CurrentVariant())).c_str());
  for (const kvmesh::Shape& shape : kvmesh::kShapes) kvmesh::Time(shape, seconds);
  kvmesh::TimeChecksum(seconds);
  return 0;
}
