// A random paged pool with its sequences, for the tests of the kernels.
#ifndef KVMESH_TESTS_UNIT_KERNELS_RANDOM_POOL_H_
#define KVMESH_TESTS_UNIT_KERNELS_RANDOM_POOL_H_

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/kv_pool_view.h"
#include "kernels/paged_attention.h"
#include "kernels/reference/reference.h"

namespace kvmesh {

inline std::vector<float> RandomFloats(size_t count, std::mt19937_64& random, float deviation = 1) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

// Distinct slots of the pool in random order, some of them skipped.
inline std::vector<int64_t> RandomSlots(int64_t limit, std::mt19937_64& random) {
  std::vector<int64_t> slots(static_cast<size_t>(limit));
  for (int64_t i = 0; i < limit; ++i) slots[static_cast<size_t>(i)] = i;
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(1 + random() % static_cast<uint64_t>(limit));
  for (int64_t& slot : slots) {
    if (random() % 5 == 0) slot = -1;
  }
  return slots;
}

// Every byte of a fresh pool is 0xff: a NaN in each format, so that reading an unwritten slot shows.
class RandomPool {
 public:
  RandomPool(const BlockLayout& layout, int64_t slots, uint64_t seed)
      : random_(seed), bytes_(static_cast<size_t>(layout.block_bytes * slots), std::byte{0xff}), free_(slots) {
    view_ = {bytes_.data(), layout.block_bytes, slots, layout};
    for (int64_t i = 0; i < slots; ++i) free_[i] = static_cast<uint32_t>(i);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  // Takes blocks for `tokens` tokens, at random places, and writes random K and V to every layer.
  std::vector<uint32_t> AddSequence(int64_t tokens) {
    const BlockLayout& layout = view_.layout;
    std::vector<uint32_t> table;
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < tokens; ++t) {
      if (t % layout.block_tokens == 0) {
        table.push_back(free_.back());
        free_.pop_back();
      }
      slots.push_back(int64_t{table.back()} * layout.block_tokens + t % layout.block_tokens);
    }
    const size_t elements = static_cast<size_t>(tokens) * layout.kv_heads * layout.head_dim;
    for (int32_t layer = 0; layer < layout.layers; ++layer) {
      if (layout.mla()) {
        const std::vector<float> latent = RandomFloats(static_cast<size_t>(tokens * layout.latent_dim), random_);
        const int64_t rope_dim = layout.head_dim - layout.latent_dim;
        reference::ConcatAndCacheMla(latent, RandomFloats(static_cast<size_t>(tokens * rope_dim), random_), slots,
                                     layer, view_);
        continue;
      }
      reference::ReshapeAndCache(RandomFloats(elements, random_), RandomFloats(elements, random_), slots, layer, view_);
    }
    return table;
  }

  const KvPoolView& view() const { return view_; }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> free_;
  KvPoolView view_;
};

// Address space for a pool beyond 2^32 bytes; only what is written takes memory. base() is null where there is none.
class FarMemory {
 public:
  explicit FarMemory(size_t bytes) : bytes_(bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) base_ = static_cast<std::byte*>(base);
  }
  ~FarMemory() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;

  std::byte* base() const { return base_; }
  // Four blocks: the last one, those at 2^31 and 2^32 bytes, the first one.
  std::vector<uint32_t> Table(const BlockLayout& layout) const {
    const auto at = [&](size_t byte) { return static_cast<uint32_t>(byte / static_cast<size_t>(layout.block_bytes)); };
    return {at(bytes_) - 1, at(size_t{1} << 31), at(size_t{1} << 32), 0};
  }

 private:
  const size_t bytes_;
  std::byte* base_ = nullptr;
};

// Blocks that hold `tokens` tokens.
inline int64_t BlocksFor(int64_t tokens, int64_t block_tokens) { return (tokens + block_tokens - 1) / block_tokens; }

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KERNELS_RANDOM_POOL_H_
