// A block store whose blocks hold numbers, so that they can be converted, and told apart from exact ones.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_TIERS_FORMAT_WORLD_H_
#define KVMESH_TESTS_UNIT_KVSTORE_TIERS_FORMAT_WORLD_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "tests/unit/kvstore/tiers/format_content.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {

inline LossyFormats LossyIn(std::initializer_list<KvFormat> formats) {
  LossyFormats lossy;
  for (const KvFormat format : formats) lossy.Add(format);
  return lossy;
}
inline constexpr LossyFormats kExact;

// A store whose blocks hold numbers.
class FormatWorld : public StoreWorld {
 public:
  explicit FormatWorld(const StoreShape& shape) : StoreWorld(shape), layout(device->layout()) {}

  // What a sequence computes on a prefix with that history is off where the prefix was.
  absl::StatusOr<BlockPin> SealNumbers(const RootKey& root, std::span<const BlockKey> keys, uint32_t index,
                                       LossyFormats lossy = kExact) {
    absl::StatusOr<PrivateBlock> block = store->Allocate();
    if (!block.ok()) return block.status();
    const float error = lossy.exact() ? 0 : kSealError;
    KVMESH_RETURN_IF_ERROR(device->Write(block->block(), FormatContent(keys[index], layout, error)));
    return store->Seal(*std::move(block), InfoAt(root, keys, index, lossy));
  }
  std::vector<BlockPin> SealAll(const RootKey& root, std::span<const BlockKey> keys, LossyFormats lossy = kExact) {
    std::vector<BlockPin> pins;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      absl::StatusOr<BlockPin> pin = SealNumbers(root, keys, i, lossy);
      EXPECT_TRUE(pin.ok()) << "block " << i << ": " << pin.status();
      if (!pin.ok()) break;
      pins.push_back(*std::move(pin));
    }
    return pins;
  }
  // Everything unpinned leaves the device.
  void PushDown() {
    for (uint32_t i = 0; i < device->capacity(); ++i) SealAll(TestRoot(99), TestChain(TestRoot(99), pushed_++, 1));
  }
  // Each pin is an accepted copy, sealed in the device's layout, and exact where it says so.
  testing::AssertionResult AllRight(std::span<const BlockPin> pins, std::span<const BlockKey> keys,
                                    LossyFormats accepted) {
    std::vector<std::byte> bytes(static_cast<size_t>(layout.block_bytes));
    for (size_t i = 0; i < pins.size(); ++i) {
      const BlockHeader& header = pins[i].header();
      if (header.key != keys[i]) return testing::AssertionFailure() << "pin " << i << " is of another block";
      if (const absl::Status read = device->Read(pins[i].block(), bytes); !read.ok()) {
        return testing::AssertionFailure() << read;
      }
      if (testing::AssertionResult right = Right(header, bytes, accepted); !right) return right << ", pin " << i;
    }
    return testing::AssertionSuccess();
  }
  testing::AssertionResult Right(const BlockHeader& header, std::span<const std::byte> bytes, LossyFormats accepted) {
    if (!header.lossy_formats.SubsetOf(accepted)) {
      return testing::AssertionFailure() << "lossy formats " << header.lossy_formats.bits() << " were not accepted";
    }
    if (header.layout != ComputeLayoutFingerprint(layout) || header.format != layout.format) {
      return testing::AssertionFailure() << "not in the device's layout";
    }
    if (const absl::Status sealed = VerifyBlock(header, bytes); !sealed.ok()) {
      return testing::AssertionFailure() << sealed;
    }
    const bool exact = header.lossy_formats.exact();
    return HoldsFormatContent(header.key, layout, bytes, exact ? 0 : FormatError(header.lossy_formats) + kSealError);
  }

  static constexpr float kSealError = 1.0f / 64;
  const BlockLayout layout;

 private:
  uint32_t pushed_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_TIERS_FORMAT_WORLD_H_
