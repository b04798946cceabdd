// Times append, attention, merging, block copies and conversions on one core. Built by the stand-alone build only;
// prints one line per shape, beside a read of as many bytes of memory as the probe.
//   time_kernels [seconds per shape, default 0.5]
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kernels/block_checksum.h"
#include "kernels/block_copy.h"
#include "kernels/merge_states.h"
#include "kernels/mla.h"
#include "kernels/paged_attention.h"
#include "kernels/quantize_kv.h"
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
    {"decode 8B-like fp8, a layer", KvFormat::kFp8E4m3, 1, 32, 8, 128, 16384, 1, false},
    {"decode 8B-like int8, a layer", KvFormat::kInt8, 1, 32, 8, 128, 16384, 1, false},
    {"decode 8B-like int4, a layer", KvFormat::kInt4, 1, 32, 8, 128, 16384, 1, false},
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

// Decode of one query over the latent cache of a layer, at the dimensions of DeepSeek-V3.
void TimeMla(const char* name, KvFormat format, int32_t q_heads, double seconds) {
  constexpr int32_t kBlockTokens = 16, kLatentDim = 512, kRopeDim = 64;
  constexpr int64_t kTokens = 4096;
  const BlockLayout layout = CanonicalMlaLayout(format, 1, kBlockTokens, kLatentDim, kRopeDim);
  std::vector<uint32_t> table(kTokens / kBlockTokens);
  std::iota(table.begin(), table.end(), 0u);
  std::vector<std::byte> bytes(table.size() * static_cast<size_t>(layout.block_bytes));
  const KvPoolView pool{bytes.data(), layout.block_bytes, static_cast<int64_t>(table.size()), layout};
  std::vector<int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), int64_t{0});
  const std::vector<float> latent = RandomFloats(kTokens * kLatentDim), rope_key = RandomFloats(kTokens * kRopeDim);
  const double append = Best(seconds / 4, [&] { ConcatAndCacheMla(latent, rope_key, slots, 0, pool); });
  const std::vector<float> query = RandomFloats(static_cast<size_t>(q_heads) * layout.head_dim);
  std::vector<float> out(static_cast<size_t>(q_heads) * kLatentDim);
  const AttentionSequence sequence{table, kTokens - 1, 1};
  const double attend = Best(seconds, [&] {
    MlaPagedDecode(query, {&sequence, 1}, 0, {.q_heads = q_heads, .scale = 0.07f}, pool, out);
  });
  const double flop = 2.0 * kTokens * q_heads * (layout.head_dim + kLatentDim);
  std::printf("%-30s append %8.3f ms  attention %9.3f ms  %6.1f Gflop/s\n", name, append * 1e3, attend * 1e3,
              flop / attend * 1e-9);
}

// Two states of 256 tokens and 32 heads of 128.
void TimeMerge(double seconds) {
  constexpr int32_t kHeadDim = 128;
  constexpr size_t kRows = 256 * 32;
  const std::vector<float> a = RandomFloats(kRows * kHeadDim), b = a, lse = RandomFloats(kRows);
  std::vector<float> out(a.size()), out_lse(kRows);
  const double took = Best(seconds, [&] { MergeStates({a, lse}, {b, lse}, kHeadDim, out, out_lse); });
  const double copy = Best(seconds, [&] { std::memcpy(out.data(), a.data(), a.size() * sizeof(float)); });
  std::printf("%-30s %6.2f GB/s read and written  copy probe %6.2f GB/s\n", "merge of two states",
              3e-9 * a.size() * sizeof(float) / took, 2e-9 * a.size() * sizeof(float) / copy);
}

// Half the heads of 64 blocks of 2 MiB, out of the pool and back.
void TimeBlockCopy(double seconds) {
  const BlockLayout layout = CanonicalLayout(KvFormat::kBf16, 32, 8, 16, 128);
  std::vector<uint32_t> blocks(64);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::vector<std::byte> bytes(blocks.size() * static_cast<size_t>(layout.block_bytes));
  const KvPoolView pool{bytes.data(), layout.block_bytes, static_cast<int64_t>(blocks.size()), layout};
  const ShardRange half = {0, 32, 4, 4};
  std::vector<std::byte> dense(bytes.size() / 2);
  const double gather = Best(seconds, [&] { GatherBlocks(pool, blocks, half, dense); });
  const double scatter = Best(seconds, [&] { ScatterBlocks(dense, pool, blocks, half); });
  const double copy = Best(seconds, [&] { std::memcpy(dense.data(), bytes.data(), dense.size()); });
  std::printf("%-30s gather %6.2f GB/s  scatter %6.2f GB/s  copy probe %6.2f GB/s\n", "half the heads of 64 blocks",
              dense.size() / gather * 1e-9, dense.size() / scatter * 1e-9, dense.size() / copy * 1e-9);
}

// Between bf16 and the formats of the tiers below, in bytes of bf16.
void TimeConversions(double seconds) {
  const auto layout = [](KvFormat format) { return CanonicalLayout(format, 32, 8, 16, 128); };
  const BlockLayout wide = layout(KvFormat::kBf16);
  std::vector<std::byte> block(static_cast<size_t>(wide.block_bytes));
  const std::vector<float> values = RandomFloats(block.size() / 2);
  ConvertBlock(layout(KvFormat::kF32), std::as_bytes(std::span(values)), wide, block);
  for (const auto& [name, format] : {std::pair{"fp32", KvFormat::kF32}, std::pair{"fp8", KvFormat::kFp8E4m3},
                                     std::pair{"int8", KvFormat::kInt8}, std::pair{"int4", KvFormat::kInt4}}) {
    const BlockLayout narrow = layout(format);
    std::vector<std::byte> stored(static_cast<size_t>(narrow.block_bytes));
    const double demote = Best(seconds, [&] { ConvertBlock(wide, block, narrow, stored); });
    const double promote = Best(seconds, [&] { ConvertBlock(narrow, stored, wide, block); });
    std::printf("block of bf16, 2 MiB, %-4s      to it %6.2f GB/s, back %6.2f GB/s\n", name,
                block.size() / demote * 1e-9, block.size() / promote * 1e-9);
  }
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  std::printf("variant %s\n", std::string(kvmesh::KernelVariantName(kvmesh::CurrentVariant())).c_str());
  for (const kvmesh::Shape& shape : kvmesh::kShapes) kvmesh::Time(shape, seconds);
  kvmesh::TimeMla("MLA decode bf16, 128 heads", kvmesh::KvFormat::kBf16, 128, seconds);
  kvmesh::TimeMla("MLA decode bf16, 16 heads", kvmesh::KvFormat::kBf16, 16, seconds);
  kvmesh::TimeMla("MLA decode fp32, 128 heads", kvmesh::KvFormat::kF32, 128, seconds);
  kvmesh::TimeMla("MLA decode fp8, 128 heads", kvmesh::KvFormat::kFp8E4m3, 128, seconds);
  kvmesh::TimeMla("MLA decode int8, 16 heads", kvmesh::KvFormat::kInt8, 16, seconds);
  kvmesh::TimeMerge(seconds);
  kvmesh::TimeBlockCopy(seconds);
  kvmesh::TimeConversions(seconds / 4);
  kvmesh::TimeChecksum(seconds);
  return 0;
}
