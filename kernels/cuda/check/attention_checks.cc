#include <span>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/check/checks.h"
#include "kernels/cuda/check/drawn.h"
#include "kernels/cuda/check/on_device.h"
#include "kernels/kv_format.h"
#include "kernels/reference/reference.h"

namespace kvmesh::cuda {
namespace {

// A call on the host. Sequences' blocks lie at random places of the pool.
struct Call {
  struct Share {
    int64_t first_position;
    int64_t queries;
  };

  Call(const BlockLayout& layout, const std::vector<Share>& shares, int32_t q_heads, uint64_t seed)
      : random(seed), pool(layout, SlotsFor(layout, shares)) {
    std::vector<uint32_t> free = DrawBlocks(pool.view.slots, pool.view.slots, random);
    tables.reserve(shares.size());
    for (const Share& s : shares) {
      const int64_t tokens = std::max<int64_t>(s.first_position + s.queries, 0);
      const int64_t blocks = (tokens + layout.block_tokens - 1) / layout.block_tokens;
      tables.emplace_back(free.end() - blocks, free.end());
      free.resize(free.size() - static_cast<size_t>(blocks));
      Fill(tables.back(), tokens);
      sequences.push_back({tables.back(), s.first_position, s.queries});
      rows += s.queries * q_heads;
    }
    query = DrawFloats(rows * layout.head_dim, random);
  }

  static int64_t SlotsFor(const BlockLayout& layout, const std::vector<Share>& shares) {
    int64_t slots = 2;
    for (const Share& s : shares) {
      slots += (std::max<int64_t>(s.first_position + s.queries, 0) + layout.block_tokens - 1) / layout.block_tokens;
    }
    return slots;
  }
  void Fill(const std::vector<uint32_t>& table, int64_t tokens) {
    const BlockLayout& layout = pool.view.layout;
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < tokens; ++t) {
      slots.push_back(int64_t{table[t / layout.block_tokens]} * layout.block_tokens + t % layout.block_tokens);
    }
    if (layout.mla()) {
      const std::vector<float> latent = DrawFloats(tokens * layout.latent_dim, random);
      const std::vector<float> rope = DrawFloats(tokens * (layout.head_dim - layout.latent_dim), random);
      reference::ConcatAndCacheMla(latent, rope, slots, 0, pool.view);
    } else {
      const std::vector<float> key = DrawFloats(tokens * layout.kv_heads * layout.head_dim, random);
      const std::vector<float> value = DrawFloats(tokens * layout.kv_heads * layout.head_dim, random);
      reference::ReshapeAndCache(key, value, slots, 0, pool.view);
    }
  }

  std::mt19937_64 random;
  DrawnPool pool;
  std::vector<std::vector<uint32_t>> tables;
  std::vector<AttentionSequence> sequences;
  int64_t rows = 0;
  std::vector<float> query;
};

struct Results {
  std::vector<float> out;
  std::vector<float> lse;
};

// The sequences [first, last) of the call on the device. Blocks stand `far` slots further on than on the host.
Results OnGpu(const Call& call, const AttentionParams& params, size_t first, size_t last, int64_t far) {
  const BlockLayout& layout = call.pool.view.layout;
  OnDevice<std::byte> pool((call.pool.view.slots + far) * layout.block_bytes);
  pool.Upload(call.pool.bytes, far * layout.block_bytes);
  std::vector<uint32_t> ids;
  AttentionBounds bounds;
  int64_t skipped = 0, queries = 0;
  for (size_t i = 0; i < last; ++i) {
    const AttentionSequence& s = call.sequences[i];
    if (i < first) {
      skipped += s.queries;
      continue;
    }
    for (const uint32_t id : s.block_table) ids.push_back(static_cast<uint32_t>(id + far));
    bounds = {std::max(bounds.max_queries, s.queries), std::max(bounds.max_length, s.first_position + s.queries)};
  }
  const OnDevice<uint32_t> tables{std::span<const uint32_t>(ids)};
  std::vector<DeviceSequence> sequences;
  const uint32_t* table = tables.data();
  for (size_t i = first; i < last; ++i) {
    const AttentionSequence& s = call.sequences[i];
    sequences.push_back({table, s.first_position, s.queries, queries});
    table += s.block_table.size();
    queries += s.queries;
  }
  const OnDevice<DeviceSequence> device_sequences{std::span<const DeviceSequence>(sequences)};
  const int64_t row = int64_t{params.q_heads} * layout.head_dim;
  const int32_t value_dim = layout.mla() ? layout.latent_dim : layout.head_dim;
  const OnDevice<float> query{std::span(call.query).subspan(skipped * row, queries * row)};
  const OnDevice<float> sinks{params.sinks};
  const OnDevice<float> out(queries * params.q_heads * value_dim), lse(queries * params.q_heads);
  const OnDevice<std::byte> workspace(
      AttentionWorkspace(static_cast<int64_t>(sequences.size()), bounds, params.q_heads, value_dim, params.window));
  const KvPoolView view = {pool.data(), layout.block_bytes, call.pool.view.slots + far, layout};
  if (layout.mla()) {
    Must(MlaPagedDecode(query.const_view(), device_sequences.const_view(), bounds, 0,
                        {.q_heads = params.q_heads, .scale = params.scale}, view, workspace.view(), out.view(),
                        lse.view(), nullptr));
  } else {
    AttentionParams on_device = params;
    on_device.sinks = {sinks.data(), params.sinks.size()};
    Must(PagedAttention(query.const_view(), device_sequences.const_view(), bounds, 0, on_device, view, workspace.view(),
                        out.view(), lse.view(), nullptr));
  }
  return {out.Download(), lse.Download()};
}

// Compares the call with the reference, and each sequence alone with the batch, bit by bit.
std::string Compare(const Call& call, const AttentionParams& params, float tolerance, float lse_tolerance,
                    int64_t far) {
  const BlockLayout& layout = call.pool.view.layout;
  const int32_t value_dim = layout.mla() ? layout.latent_dim : layout.head_dim;
  Results want{std::vector<float>(call.rows * value_dim), std::vector<float>(call.rows)};
  if (layout.mla()) {
    reference::MlaPagedDecode(call.query, call.sequences, 0, {.q_heads = params.q_heads, .scale = params.scale},
                              call.pool.view, want.out, want.lse);
  } else {
    reference::PagedAttention(call.query, call.sequences, 0, params, call.pool.view, want.out, want.lse);
  }
  const Results got = OnGpu(call, params, 0, call.sequences.size(), far);
  std::string fault = Difference(want.out, got.out, tolerance, "out");
  if (fault.empty()) fault = Difference(want.lse, got.lse, lse_tolerance, "lse");
  Results alone;
  for (size_t i = 0; i < call.sequences.size() && far == 0; ++i) {
    const Results one = OnGpu(call, params, i, i + 1, 0);
    alone.out.insert(alone.out.end(), one.out.begin(), one.out.end());
    alone.lse.insert(alone.lse.end(), one.lse.begin(), one.lse.end());
  }
  if (fault.empty()) fault = DifferentBytes(alone.out, got.out, "out of a batch and of its sequences alone");
  if (fault.empty()) fault = DifferentBytes(alone.lse, got.lse, "lse of a batch and of its sequences alone");
  return fault;
}

std::string Name(const char* what, const BlockLayout& layout, const AttentionParams& params, uint64_t seed) {
  return std::string(what) + " seed=" + std::to_string(seed) + " " + std::string(KvFormatName(layout.format)) +
         " block_tokens=" + std::to_string(layout.block_tokens) + " head_dim=" + std::to_string(layout.head_dim) +
         " kv_heads=" + std::to_string(layout.kv_heads) + " q_heads=" + std::to_string(params.q_heads) +
         " window=" + std::to_string(params.window) + " soft_cap=" + std::to_string(params.soft_cap) +
         " sinks=" + std::to_string(params.sinks.size());
}

bool Exact(KvFormat format) { return format == KvFormat::kF32; }

}  // namespace

void CheckAttention(const Report& report) {
  constexpr KvFormat kRead[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kInt8};
  constexpr int32_t kGroups[] = {1, 2, 3, 4, 5, 7, 8, 16};
  constexpr int64_t kWindows[] = {0, 0, 1, 17, 100, 600, 100000};
  uint64_t seed = 0;
  for (const int32_t tokens : {1, 8, 16, 64}) {
    for (const int32_t head_dim : {64, 80, 96, 128, 256}) {
      for (const KvFormat format : kRead) {
        std::mt19937_64 random(++seed);
        AttentionParams params = {.scale = 1 / std::sqrt(static_cast<float>(head_dim))};
        const int32_t kv_heads = static_cast<int32_t>(1 + random() % 2);
        params.q_heads = kv_heads * kGroups[random() % 8];
        params.window = kWindows[random() % 7];
        params.soft_cap = random() % 3 == 0 ? 5.0f : 0.0f;
        const std::vector<float> sinks = DrawFloats(params.q_heads, random);
        if (random() % 3 == 0) params.sinks = sinks;
        const BlockLayout layout = CanonicalLayout(format, 1, kv_heads, tokens, head_dim);
        const std::vector<Call::Share> shares = {{0, 1},          {std::max(tokens - 2, 0), 1},
                                                 {tokens - 1, 1}, {tokens, 1},
                                                 {0, 0},          {-2, 4},
                                                 {0, 70},         {100, 33},
                                                 {4096, 1},       {seed % 8 == 0 ? 4090 : 250, 7}};
        const Call call(layout, shares, params.q_heads, seed);
        report(Name("attention", layout, params, seed),
               Compare(call, params, Exact(format) ? 1e-5f : 1e-2f, Exact(format) ? 1e-5f : 1e-3f, 0));
      }
    }
  }
  // Blocks beyond 2^31 bytes of the pool.
  const BlockLayout layout = CanonicalLayout(KvFormat::kBf16, 1, 8, 16, 128);
  const AttentionParams params = {.q_heads = 16, .scale = 0.1f};
  const Call call(layout, {{700, 1}, {60, 20}}, params.q_heads, 7);
  const int64_t far = (int64_t{9} << 28) / layout.block_bytes;
  report(Name("attention far", layout, params, 7), Compare(call, params, 1e-2f, 1e-3f, far));
}

void CheckMla(const Report& report) {
  uint64_t seed = 1000;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kInt8}) {
    for (const int32_t latent : {64, 512}) {
      const BlockLayout layout = CanonicalMlaLayout(format, 1, 16, latent, 64);
      const AttentionParams params = {.q_heads = 16, .scale = 1 / std::sqrt(192.0f)};
      const Call call(layout, {{900, 1}, {0, 20}, {15, 2}, {0, 0}, {-1, 2}}, params.q_heads, ++seed);
      report(Name("mla", layout, params, seed), Compare(call, params, 1e-4f, 1e-4f, 0));
    }
  }
}

}  // namespace kvmesh::cuda
