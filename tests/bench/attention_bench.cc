// Decode attention over long contexts: bytes of K and V per second, of one query per sequence.
//
// Blocks lie in random order in a pool larger than four times the last cache, so that every pass reads from memory. The
// probe: as many threads read the same pool from front to back.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/attention_plan.h"
#include "kernels/kv_format.h"
#include "kernels/quantize_kv.h"
#include "kernels/variant.h"
#include "kvstore/pool/block_pool.h"
#include "tests/bench/bench_support.h"

namespace kvmesh {
namespace {

constexpr int32_t kKvHeads = 8, kHeadDim = 128, kBlockTokens = 16, kMostGroup = 4;

// Bytes of the last cache as the kernel knows it, else as the C library does, else 32 MiB.
int64_t LastCacheBytes() {
  int64_t kib = 0;
  if (std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib) return kib << 10;
  const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? bytes : int64_t{32} << 20;
}

// Runs `work(thread number)` on all threads of a team at once.
template <class Work>
void OnThreads(int threads, Work work) {
  std::vector<std::thread> running;
  for (int t = 1; t < threads; ++t) running.emplace_back([&, t] { work(t); });
  work(0);
  for (std::thread& thread : running) thread.join();
}

// One layer of as many sequences of `tokens` tokens as `min_bytes` don't hold, their blocks mixed.
class Batch {
 public:
  Batch(KvFormat format, int64_t tokens, int64_t min_bytes) : tokens_(tokens), blocks_(tokens / kBlockTokens) {
    const BlockLayout layout = CanonicalLayout(format, 1, kKvHeads, kBlockTokens, kHeadDim);
    sequences_ = min_bytes / (layout.block_bytes * blocks_) + 1;
    pool_ = Must(MemoryPool::Create(layout, static_cast<uint32_t>(sequences_ * blocks_)));
    const BlockLayout values = CanonicalLayout(KvFormat::kF32, 1, kKvHeads, kBlockTokens, kHeadDim);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> floats(static_cast<size_t>(values.block_bytes) / sizeof(float));
    for (float& x : floats) x = normal(random);
    std::vector<std::byte> block(static_cast<size_t>(layout.block_bytes));
    ConvertBlock(values, std::as_bytes(std::span(floats)), layout, block);
    for (int64_t i = 0; i < sequences_ * blocks_; ++i) {
      const BlockId id = *pool_->Allocate();
      Must(pool_->Write(id, block));
      table_.push_back(static_cast<uint32_t>(id.value()));
    }
    std::shuffle(table_.begin(), table_.end(), random);
    query_.resize(static_cast<size_t>(sequences_ * kMostGroup * kKvHeads * kHeadDim));
    for (float& x : query_) x = normal(random);
  }

  // Bytes of elements per second, descales not counted, of a decode step with `group` query heads per kv head.
  double Attend(int group, int threads) const {
    const KvPoolView& pool = pool_->view();
    const AttentionParams params = {.q_heads = kKvHeads * group, .scale = 1 / std::sqrt(float{kHeadDim})};
    std::vector<AttentionSequence> sequences;
    for (int64_t i = 0; i < sequences_; ++i) {
      const auto blocks = static_cast<size_t>(blocks_);
      sequences.push_back({std::span(table_).subspan(static_cast<size_t>(i) * blocks, blocks), tokens_ - 1, 1});
    }
    const auto size = static_cast<size_t>(sequences_ * params.q_heads * kHeadDim);
    std::vector<float> out(size), whole(size);
    const AttentionCall call = {std::span(query_).first(size), 0, params, pool, out, {}};
    const double start = SecondsNow();
    const AttentionPlan plan(sequences, params, pool, {.threads = threads});
    std::vector<float> workspace(static_cast<size_t>(plan.workspace_floats()));
    const auto run = [](const std::string& refusal) {
      if (!refusal.empty()) Must(absl::InternalError(refusal));
    };
    std::atomic<int> next{0};
    OnThreads(threads, [&](int) {
      for (int part = next++; part < plan.parts(); part = next++) run(plan.RunPart(part, call, workspace));
    });
    run(plan.Finish(call, workspace));
    const double seconds = SecondsNow() - start;
    PagedAttention(call.query, sequences, 0, params, pool, whole);
    if (std::memcmp(whole.data(), out.data(), size * sizeof(float)) != 0) {
      Must(absl::InternalError("the plan's result is not that of the whole"));
    }
    return 2.0 * static_cast<double>(sequences_ * kKvHeads * tokens_ * pool.layout.token_stride) / seconds;
  }

  // Bytes per second of a plain read of the pool.
  double Read(int threads) const {
    const KvPoolView& view = pool_->view();
    const auto* const words = reinterpret_cast<const uint64_t*>(view.base);
    const size_t share =
        static_cast<size_t>(view.slots * view.slot_stride) / sizeof(uint64_t) / static_cast<size_t>(threads);
    std::atomic<uint64_t> sum{0};
    const double start = SecondsNow();
    OnThreads(threads, [&](int t) {
      uint64_t mine = 0;
      const uint64_t* from = words + share * static_cast<size_t>(t);
      for (size_t i = 0; i < share; ++i) mine += from[i];
      sum += mine;
    });
    const double seconds = SecondsNow() - start;
    if (sum == 0) Must(absl::InternalError("the pool is empty"));
    return static_cast<double>(share * static_cast<size_t>(threads) * sizeof(uint64_t)) / seconds;
  }

 private:
  const int64_t tokens_;
  const int64_t blocks_;  // of a sequence
  int64_t sequences_ = 0;
  std::unique_ptr<MemoryPool> pool_;
  std::vector<uint32_t> table_;
  std::vector<float> query_;
};

int Run(const BenchOptions& options) {
  struct Shape {
    KvFormat format;
    std::vector<int> groups;
    double bar;
  };
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t cache = LastCacheBytes();
  // Bars are for processors with the dot products of bf16 and int8.
  const bool has_bars = CurrentVariant() == KernelVariant::kAvx512;
  Report report("attention_bench", options);
  for (const Shape& shape : {Shape{KvFormat::kBf16, {1, 2, 4}, 0.6}, Shape{KvFormat::kInt8, {1, 2, 4}, 0.6},
                             Shape{KvFormat::kF32, {1, 4}, 0.8}}) {
    Batch batch(shape.format, options.quick ? 1024 : 16384, options.quick ? 0 : 4 * cache);
    for (const int group : shape.groups) {
      const Comparison comparison = Alternate(
          options.rounds(31), [&]() -> Sample { return {batch.Attend(group, threads)}; },
          [&]() -> Sample { return {batch.Read(threads)}; });
      report.Add(absl::StrCat("decode, ", std::string(KvFormatName(shape.format)), ", GQA ", group), "GB/s", 1e-9,
                 "memory read", comparison, 0, has_bars ? std::optional(shape.bar) : std::nullopt);
    }
  }
  report.Note(absl::StrFormat("%d threads, variant %s, context %d, last cache %d MiB", threads,
                              std::string(KernelVariantName(CurrentVariant())), options.quick ? 1024 : 16384,
                              cache >> 20));
  return report.Finish();
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  return kvmesh::Run(kvmesh::ParseBenchOptions(argc, argv, "Decode attention against a plain read of memory"));
}
