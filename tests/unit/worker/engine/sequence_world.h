// Sequences whose K/V tells where it was written, for tests.
#ifndef KVMESH_TESTS_UNIT_WORKER_ENGINE_SEQUENCE_WORLD_H_
#define KVMESH_TESTS_UNIT_WORKER_ENGINE_SEQUENCE_WORLD_H_

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/unit/kvstore/tiers/store_world.h"
#include "worker/engine/sequence.h"

namespace kvmesh {

// `count` ids from `first` on.
inline std::vector<uint32_t> TokensFrom(uint32_t first, size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline constexpr absl::Time kNoDeadline = absl::InfiniteFuture();

class SequenceWorld : public StoreWorld {
 public:
  explicit SequenceWorld(const StoreShape& shape) : StoreWorld(shape) {}

  std::unique_ptr<Sequence> NewSequence(std::vector<uint32_t> tokens, bool publish = true) {
    return std::make_unique<Sequence>(std::vector{ChainGroup(*store)}, root, publish, std::move(tokens));
  }
  // A sequence that starts with what the store holds of its tokens.
  std::unique_ptr<Sequence> Resumed(std::vector<uint32_t> tokens) {
    std::unique_ptr<Sequence> sequence = NewSequence(std::move(tokens));
    ResumeResult resumed;
    BlockStore::Acquired acquired = Acquire(sequence->keys());
    resumed.held.emplace_back();
    for (uint32_t i = 0; i < acquired.pins.size(); ++i) resumed.held[0].push_back({i, std::move(acquired.pins[i])});
    for (const Tier tier : acquired.found_in) resumed.found_in.push_back(static_cast<HitSource>(tier));
    sequence->Adopt(std::move(resumed));
    return sequence;
  }
  // Writes positions [start, start + count) of the layers, as AppendKv does.
  void Append(Sequence& sequence, uint64_t start, uint64_t count, int32_t first_layer = 0,
              int32_t layers = kTestLayout.layers) {
    const absl::StatusOr<Sequence::GroupSlots> slots =
        sequence.PrepareSlots(start, count, first_layer, layers, kNoDeadline);
    ASSERT_TRUE(slots.ok()) << slots.status();
    const std::vector<int64_t>& chain = (*slots)[0];
    ASSERT_EQ(chain.size(), count);
    for (uint64_t i = 0; i < count; ++i) {
      if (chain[i] < 0) continue;
      for (int32_t layer = first_layer; layer < first_layer + layers; ++layer) {
        *At(chain[i], layer) = Word(sequence.tokens()[start + i], layer);
      }
    }
    sequence.MarkWritten(first_layer, layers, start + count);
  }
  void AppendAll(Sequence& sequence) {
    const uint64_t ready = sequence.ready();
    Append(sequence, ready, sequence.tokens().size() - ready);
  }
  // Positions below ready() hold what their tokens say, in all layers.
  testing::AssertionResult HoldsItsTokens(const Sequence& sequence) {
    const std::vector<uint32_t> table = sequence.table(0).ids();
    for (uint64_t position = 0; position < sequence.ready(); ++position) {
      const int64_t slot = int64_t{table[position / kTestBlockTokens]} * kTestBlockTokens +
                           static_cast<int64_t>(position % kTestBlockTokens);
      for (int32_t layer = 0; layer < kTestLayout.layers; ++layer) {
        if (*At(slot, layer) != Word(sequence.tokens()[position], layer)) {
          return testing::AssertionFailure() << "position " << position << " of layer " << layer;
        }
      }
    }
    return testing::AssertionSuccess();
  }

  const RootKey root = TestRoot(7);

 private:
  static uint32_t Word(uint32_t token, int32_t layer) { return token * 16 + static_cast<uint32_t>(layer) + 1; }
  // The first word of K of a slot; enough to know it by.
  uint32_t* At(int64_t slot, int32_t layer) {
    const std::span<std::byte> bytes = device->bytes(BlockId(static_cast<uint32_t>(slot / kTestBlockTokens)));
    return reinterpret_cast<uint32_t*>(bytes.data() + kTestLayout.Offset(layer, 0, 0, slot % kTestBlockTokens));
  }
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_ENGINE_SEQUENCE_WORLD_H_
