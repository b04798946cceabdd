#include <span>

#include "kernels/block_checksum.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/block_bytes.h"
#include "kernels/cuda/check/checks.h"
#include "kernels/cuda/check/drawn.h"
#include "kernels/cuda/check/on_device.h"
#include "kernels/cuda/states.h"
#include "kernels/cuda/states_body.h"
#include "kernels/kv_format.h"
#include "kernels/quantize_kv.h"
#include "kernels/reference/reference.h"

namespace kvmesh::cuda {
namespace {

template <class T>
std::span<const T> All(const std::vector<T>& from) {
  return from;
}

KvPoolView At(const OnDevice<std::byte>& device, const KvPoolView& host) {
  return {device.data(), host.slot_stride, host.slots, host.layout};
}

// Appends to random slots, some of them skipped; fills `pool` as the reference does.
std::string CheckAppend(DrawnPool& pool, std::mt19937_64& random) {
  const BlockLayout& layout = pool.view.layout;
  const OnDevice<std::byte> device{All(pool.bytes)};
  std::vector<int64_t> slots;
  for (const uint32_t id :
       DrawBlocks(pool.view.slots * layout.block_tokens, pool.view.slots * layout.block_tokens, random)) {
    slots.push_back(random() % 16 == 0 ? -1 : int64_t{id});
  }
  const int64_t tokens = static_cast<int64_t>(slots.size());
  const int64_t width = layout.mla() ? layout.latent_dim : layout.kv_heads * layout.head_dim;
  const std::vector<float> first = DrawFloats(tokens * width, random);
  const std::vector<float> second =
      DrawFloats(tokens * (layout.mla() ? layout.head_dim - layout.latent_dim : width), random);
  const OnDevice<float> device_first{All(first)}, device_second{All(second)};
  const OnDevice<int64_t> device_slots{All(slots)};
  if (layout.mla()) {
    reference::ConcatAndCacheMla(first, second, slots, 0, pool.view);
    Must(ConcatAndCacheMla(device_first.const_view(), device_second.const_view(), device_slots.const_view(), 0,
                           At(device, pool.view), nullptr));
  } else {
    reference::ReshapeAndCache(first, second, slots, 0, pool.view);
    Must(ReshapeAndCache(device_first.const_view(), device_second.const_view(), device_slots.const_view(), 0,
                         At(device, pool.view), nullptr));
  }
  return DifferentBytes(pool.bytes, device.Download(), "bytes of the pool");
}

std::string CheckConversion(const DrawnPool& from, KvFormat format) {
  const BlockLayout& a = from.view.layout;
  const BlockLayout b =
      a.mla() ? CanonicalMlaLayout(format, a.layers, a.block_tokens, a.latent_dim, a.head_dim - a.latent_dim)
              : CanonicalLayout(format, a.layers, a.kv_heads, a.block_tokens, a.head_dim);
  DrawnPool want(b, from.view.slots);
  const OnDevice<std::byte> in{All(from.bytes)}, out{All(want.bytes)};
  for (int64_t id = 0; id < from.view.slots; ++id) {
    ConvertBlock(a, {from.view.base + id * a.block_bytes, static_cast<size_t>(a.block_bytes)}, b,
                 {want.view.base + id * b.block_bytes, static_cast<size_t>(b.block_bytes)});
  }
  Must(ConvertBlocks(At(in, from.view), {}, At(out, want.view), {}, from.view.slots, nullptr));
  return DifferentBytes(want.bytes, out.Download(), "bytes of the converted blocks");
}

}  // namespace

void CheckRows(const Report& report) {
  uint64_t seed = 2000;
  for (const KvFormat format : kKvFormats) {
    for (const BlockLayout& layout : {CanonicalLayout(format, 1, 3, 16, 80), CanonicalLayout(format, 1, 2, 1, 128),
                                      CanonicalMlaLayout(format, 1, 8, 512, 64)}) {
      std::mt19937_64 random(++seed);
      const std::string name = std::string(KvFormatName(format)) + " head_dim=" + std::to_string(layout.head_dim) +
                               " block_tokens=" + std::to_string(layout.block_tokens) + " seed=" + std::to_string(seed);
      DrawnPool pool(layout, 20);
      report("append " + name, CheckAppend(pool, random));
      // Rows that append skipped hold 0xff, NaN whose bits a product need not keep.
      std::fill(pool.bytes.begin(), pool.bytes.end(), std::byte{0});
      report("append over zeros " + name, CheckAppend(pool, random));
      for (const KvFormat to : kKvFormats) {
        if (to == format) continue;
        report("convert to " + std::string(KvFormatName(to)) + " " + name, CheckConversion(pool, to));
      }
    }
  }
}

void CheckBlockBytes(const Report& report) {
  uint64_t seed = 3000;
  for (const KvFormat format : kKvFormats) {
    std::mt19937_64 random(++seed);
    const std::string name = std::string(KvFormatName(format)) + " seed=" + std::to_string(seed);
    const BlockLayout layout = CanonicalLayout(format, 3, 4, 16, 96);
    DrawnPool pool(layout, 9), target(layout, 9);
    pool.bytes = DrawBytes(static_cast<int64_t>(pool.bytes.size()), random);
    pool.view.base = pool.bytes.data();
    const OnDevice<std::byte> device{All(pool.bytes)}, device_target{All(target.bytes)};
    const std::vector<uint32_t> blocks = DrawBlocks(9, 5, random);
    const OnDevice<uint32_t> ids{All(blocks)};

    for (const ShardRange& range : {WholeShard(layout), ShardRange{1, 2, 1, 2}}) {
      const int64_t bytes = 5 * ShardLayout(layout, range).block_bytes;
      std::vector<std::byte> want(static_cast<size_t>(bytes));
      const OnDevice<std::byte> dense(bytes);
      reference::GatherBlocks(pool.view, blocks, range, want);
      Must(GatherBlocks(At(device, pool.view), ids.const_view(), range, dense.view(), nullptr));
      report("gather " + name, DifferentBytes(want, dense.Download(), "gathered bytes"));
      reference::ScatterBlocks(want, target.view, blocks, range);
      Must(ScatterBlocks(dense.const_view(), At(device_target, target.view), ids.const_view(), range, nullptr));
      report("scatter " + name, DifferentBytes(target.bytes, device_target.Download(), "scattered bytes"));
    }
    const std::vector<BlockPair> pairs = {{0, 8}, {3, 1}, {3, 2}};
    const OnDevice<BlockPair> device_pairs{All(pairs)};
    reference::CopyBlocks(pool.view, target.view, pairs);
    Must(CopyBlocks(At(device, pool.view), At(device_target, target.view), device_pairs.const_view(), nullptr));
    report("copy " + name, DifferentBytes(target.bytes, device_target.Download(), "copied bytes"));

    for (const int64_t payload : {int64_t{0}, int64_t{100}, int64_t{4097}, layout.block_bytes}) {
      constexpr int64_t kHeader = 128;
      const std::vector<std::byte> headers = DrawBytes(5 * kHeader, random);
      std::vector<uint64_t> want;
      for (size_t i = 0; i < 5; ++i) {
        want.push_back(BlockChecksum(All(headers).subspan(i * kHeader, kHeader),
                                     All(pool.bytes).subspan(blocks[i] * layout.block_bytes, payload)));
      }
      const OnDevice<std::byte> device_headers{All(headers)};
      const OnDevice<std::byte> workspace(BlockChecksumsWorkspace(5, payload, kHeader));
      const OnDevice<uint64_t> sums(5);
      Must(BlockChecksums(At(device, pool.view), ids.const_view(), payload, device_headers.const_view(),
                          workspace.view(), sums.view(), nullptr));
      report("checksum " + name + " payload=" + std::to_string(payload), DifferentBytes(want, sums.Download(), "sums"));
    }
  }
}

void CheckStates(const Report& report) {
  for (uint64_t seed = 4001; seed <= 4010; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t rows = static_cast<int64_t>(1 + random() % 300);
    const int32_t head_dim = static_cast<int32_t>(8 * (1 + random() % 32));
    const size_t count = 1 + random() % 3;
    std::vector<std::vector<float>> outs, lses;
    std::vector<AttentionState> states;
    for (size_t i = 0; i < count; ++i) {
      outs.push_back(DrawFloats(rows * head_dim, random));
      lses.push_back(DrawFloats(rows, random));
      for (float& lse : lses.back()) lse = random() % 4 == 0 ? kEmptyLse : 5 * lse;
    }
    for (size_t i = 0; i < count; ++i) states.push_back({outs[i], lses[i]});
    std::vector<float> want(outs[0].size()), want_lse(lses[0].size());
    reference::MergeStates(states, head_dim, want, want_lse);
    const OnDevice<float> all_outs(static_cast<int64_t>(count) * rows * head_dim),
        all_lses(static_cast<int64_t>(count) * rows);
    std::vector<DeviceState> on_device;
    for (size_t i = 0; i < count; ++i) {
      const int64_t at = static_cast<int64_t>(i) * rows;
      Must(cudaMemcpy(all_outs.data() + at * head_dim, outs[i].data(), outs[i].size() * 4, cudaMemcpyHostToDevice));
      Must(cudaMemcpy(all_lses.data() + at, lses[i].data(), lses[i].size() * 4, cudaMemcpyHostToDevice));
      on_device.push_back({all_outs.data() + at * head_dim, all_lses.data() + at});
    }
    const OnDevice<DeviceState> device_states{All(on_device)};
    const OnDevice<float> out(rows * head_dim), lse(rows);
    Must(MergeStates(device_states.const_view(), head_dim, out.view(), lse.view(), nullptr));
    std::string fault = Difference(want, out.Download(), 1e-5f, "out");
    if (fault.empty()) fault = Difference(want_lse, lse.Download(), 1e-5f, "lse");
    report("merge seed=" + std::to_string(seed), fault);

    const RopeParams params = {.theta = 500000, .rotary_dim = head_dim, .interleaved = seed % 2 == 0};
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < rows; ++i) positions.push_back(static_cast<int64_t>(random() % 100000));
    std::vector<float> x = DrawFloats(rows * 3 * head_dim, random);
    const OnDevice<float> device_x{All(x)};
    const OnDevice<int64_t> device_positions{All(positions)};
    ApplyRope(x, positions, 3, head_dim, params);
    Must(ApplyRope(device_x.view(), device_positions.const_view(), 3, head_dim, params, {}, nullptr));
    report("rope seed=" + std::to_string(seed), Difference(x, device_x.Download(), 1e-5f, "x"));
  }
}

void CheckAll(const Report& report) {
  CheckRows(report);
  CheckBlockBytes(report);
  CheckStates(report);
  CheckMla(report);
  CheckAttention(report);
}

}  // namespace kvmesh::cuda
