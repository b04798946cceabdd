#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "kernels/cuda/append.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/block_bytes.h"
#include "kernels/cuda/check/drawn.h"
#include "kernels/cuda/check/on_device.h"
#include "kernels/cuda/check/timing.h"
#include "kernels/kv_format.h"

namespace kvmesh::cuda {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int64_t kProbeBytes = int64_t{2} << 30;

// Reads all of `from`; the sum goes out only where it is what no caller expects, so that the reads stay.
__global__ void ReadKernel(const uint4* from, int64_t count, unsigned unlikely, unsigned* out) {
  unsigned sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 x = from[i];
    sum += x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == unlikely) *out = sum;
}

// Median seconds of a launch, after two that do not count.
double Seconds(const std::function<void()>& launch) {
  constexpr int kRuns = 9;
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin));
  Must(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int i = 0; i < kRuns + 2; ++i) {
    Must(cudaEventRecord(begin, nullptr));
    launch();
    Must(cudaEventRecord(end, nullptr));
    Must(cudaEventSynchronize(end));
    float milliseconds = 0;
    Must(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= 2) seconds.push_back(milliseconds * 1e-3);
  }
  Must(cudaEventDestroy(begin));
  Must(cudaEventDestroy(end));
  std::sort(seconds.begin(), seconds.end());
  return seconds[kRuns / 2];
}

bool Fits(int64_t bytes) {
  size_t free = 0, total = 0;
  Must(cudaMemGetInfo(&free, &total));
  return bytes < static_cast<int64_t>(free) * 9 / 10;
}

// A pool of one layer whose elements and descales are small numbers.
struct TimedPool {
  TimedPool(KvFormat format, int64_t slots)
      : layout(CanonicalLayout(format, 1, kKvHeads, kBlockTokens, kHeadDim)),
        bytes(layout.block_bytes * slots),
        view{bytes.data(), layout.block_bytes, slots, layout} {
    Must(cudaMemset(bytes.data(), 0x3c, bytes.bytes()));
  }
  BlockLayout layout;
  OnDevice<std::byte> bytes;
  KvPoolView view;
};

// `batch` sequences of `queries` queries, the last at position context - 1, in blocks of random order.
Timing TimeAttention(KvFormat format, int64_t context, int64_t batch, int64_t queries, int32_t group, double probe) {
  std::mt19937_64 random(1);
  const int64_t blocks = (context + kBlockTokens - 1) / kBlockTokens;
  const TimedPool pool(format, blocks * batch);
  const std::vector<uint32_t> ids = DrawBlocks(blocks * batch, blocks * batch, random);
  const OnDevice<uint32_t> tables{std::span<const uint32_t>(ids)};
  std::vector<DeviceSequence> list;
  for (int64_t i = 0; i < batch; ++i)
    list.push_back({tables.data() + i * blocks, context - queries, queries, i * queries});
  const OnDevice<DeviceSequence> sequences{std::span<const DeviceSequence>(list)};
  const AttentionParams params = {.q_heads = kKvHeads * group, .scale = 0.088f};
  const AttentionBounds bounds = {queries, context};
  const std::vector<float> drawn = DrawFloats(batch * queries * params.q_heads * kHeadDim, random);
  const OnDevice<float> query{std::span<const float>(drawn)}, out(static_cast<int64_t>(drawn.size()));
  const OnDevice<std::byte> workspace(AttentionWorkspace(batch, bounds, params.q_heads, kHeadDim, 0));
  Timing timing{.name = std::string(queries == 1 ? "decode " : "prefill ") + std::string(KvFormatName(format)) +
                        " context=" + std::to_string(context) + " batch=" + std::to_string(batch) +
                        (queries == 1 ? "" : " queries=" + std::to_string(queries)) + " gqa=" + std::to_string(group),
                .bytes = static_cast<double>(pool.bytes.bytes()),
                .tokens = static_cast<double>(batch * queries),
                .probe = probe};
  timing.seconds = Seconds([&] {
    Must(PagedAttention(query.const_view(), sequences.const_view(), bounds, 0, params, pool.view, workspace.view(),
                        out.view(), {}, nullptr));
  });
  return timing;
}

Timing TimeAppend(KvFormat format, double probe) {
  constexpr int64_t kTokens = 8192;
  std::mt19937_64 random(2);
  const TimedPool pool(format, kTokens / kBlockTokens);
  std::vector<int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  const OnDevice<int64_t> device_slots{std::span<const int64_t>(slots)};
  const OnDevice<float> key(kTokens * kKvHeads * kHeadDim), value(kTokens * kKvHeads * kHeadDim);
  Must(cudaMemset(key.data(), 0x3c, key.bytes()));
  Must(cudaMemset(value.data(), 0x3c, value.bytes()));
  Timing timing{.name = "append " + std::string(KvFormatName(format)) + " tokens=" + std::to_string(kTokens),
                .bytes = static_cast<double>(key.bytes() + value.bytes() + pool.bytes.bytes()),
                .tokens = kTokens,
                .probe = probe};
  timing.seconds = Seconds([&] {
    Must(ReshapeAndCache(key.const_view(), value.const_view(), device_slots.const_view(), 0, pool.view, nullptr));
  });
  return timing;
}

void TimeBlockBytes(double probe, std::vector<Timing>& out) {
  constexpr int64_t kSlots = 16384;
  std::mt19937_64 random(3);
  const TimedPool pool(KvFormat::kBf16, kSlots);
  const std::vector<uint32_t> drawn = DrawBlocks(kSlots, kSlots, random);
  const OnDevice<uint32_t> ids{std::span<const uint32_t>(drawn)};
  const int64_t bytes = static_cast<int64_t>(pool.bytes.bytes());
  const std::string size = " MiB=" + std::to_string(bytes >> 20);
  {
    const OnDevice<std::byte> dense(bytes);
    out.push_back({.name = "gather" + size, .bytes = 2.0 * static_cast<double>(bytes), .probe = probe});
    out.back().seconds = Seconds(
        [&] { Must(GatherBlocks(pool.view, ids.const_view(), WholeShard(pool.layout), dense.view(), nullptr)); });
  }
  constexpr int64_t kHeader = 128;
  const OnDevice<std::byte> headers(kSlots * kHeader);
  const OnDevice<std::byte> workspace(BlockChecksumsWorkspace(kSlots, pool.layout.block_bytes, kHeader));
  const OnDevice<uint64_t> sums(kSlots);
  out.push_back({.name = "checksum" + size, .bytes = static_cast<double>(bytes), .probe = probe});
  out.back().seconds = Seconds([&] {
    Must(BlockChecksums(pool.view, ids.const_view(), pool.layout.block_bytes, headers.const_view(), workspace.view(),
                        sums.view(), nullptr));
  });
}

}  // namespace

double ProbeRead(int64_t bytes) {
  const OnDevice<std::byte> from(bytes);
  const OnDevice<unsigned> out(1);
  const double seconds = Seconds([&] {
    ReadKernel<<<132 * 16, 512>>>(reinterpret_cast<const uint4*>(from.data()), bytes / 16, 12345u, out.data());
    Must(cudaGetLastError());
  });
  return static_cast<double>(bytes) / seconds;
}

std::vector<Timing> TimeKernels() {
  std::vector<Timing> out;
  const double probe = ProbeRead(Fits(kProbeBytes) ? kProbeBytes : kProbeBytes / 8);
  out.push_back({.name = "read probe", .seconds = 1, .bytes = probe, .probe = probe});
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kInt8}) {
    for (const int64_t context : {1024, 8192, 32768}) {
      for (const int64_t batch : {1, 32}) {
        const int64_t bytes = context * batch * kKvHeads * (kHeadDim * 2 + 4) * 2;
        if (!Fits(bytes)) continue;
        for (const int32_t group : {1, 4, 8}) out.push_back(TimeAttention(format, context, batch, 1, group, probe));
      }
    }
    out.push_back(TimeAttention(format, 8192, 1, 2048, 4, probe));
    out.push_back(TimeAppend(format, probe));
  }
  TimeBlockBytes(probe, out);
  return out;
}

}  // namespace kvmesh::cuda
