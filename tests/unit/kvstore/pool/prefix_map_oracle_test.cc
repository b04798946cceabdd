// The prefix map against the literal model, over seeded random streams of operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kvstore/pool/prefix_map.h"
#include "tests/support/block_content.h"
#include "tests/unit/kvstore/pool/map_world.h"
#include "tests/unit/kvstore/pool/prefix_map_model.h"

namespace kvmesh {
namespace {

constexpr uint32_t kSeeds = 200;
constexpr int kOperations = 250;
constexpr uint32_t kRoots = 3;
constexpr uint32_t kBlocks = 40;  // of the forest that a stream draws from

// A block that a stream may add: its one true place in the forest.
struct Place {
  RootKey root;
  BlockKey parent;
  BlockKey key;
  uint32_t index = 0;
};

class Stream {
 public:
  explicit Stream(uint32_t seed) : random_(seed) {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      // Either a new branch at a root, or under any block so far; late ones make deep chains.
      const uint32_t under = i < kRoots ? i : Draw(i + 1) == i ? Draw(kRoots) : kRoots + Draw(i);
      Place place;
      if (under < kRoots) {
        place.root = TestRoot(under);
        place.parent = RootAsParent(place.root);
      } else {
        const Place& above = forest_[under - kRoots];
        place.root = above.root;
        place.parent = above.key;
        place.index = above.index + 1;
      }
      place.key = TestChild(place.parent, i);
      forest_.push_back(place);
    }
  }

  // What happened, so that a test can tell that rare branches ran.
  struct Counts {
    size_t most_blocks = 0;
    uint32_t deepest = 0;
    std::array<uint64_t, 3> evicted{};  // by tier
    uint64_t losses_with_descendants = 0;
    uint64_t pinned_while_detached = 0;
    uint64_t freed_by_unpin = 0;
    uint64_t refused_adds = 0;
    uint64_t replaced = 0;  // lossier copies
    uint64_t replaced_above_children = 0;
    uint64_t replaced_out_of_sight = 0;  // a host copy below a device copy
    uint64_t evicted_to_lossier = 0;     // the memory set went on with the host's formats
  };
  const Counts& counts() const { return counts_; }

  // Runs one random operation on both and returns what it was.
  std::string Step() {
    const uint32_t dice = Draw(1000);
    if (dice < 550) return AddOne();
    if (dice < 700) return EvictVictim();
    if (dice < 715) return LoseOne();
    if (dice < 720) return EraseOne();
    if (dice < 722) return EraseRoot();
    if (dice < 820) return PinOne();
    if (dice < 915) return UnpinOne();
    return TouchOne();
  }

  // Everything that can be seen of the map equals the model's.
  void Compare() {
    ASSERT_EQ(world_.map.size(), model_.nodes().size());
    counts_.most_blocks = std::max(counts_.most_blocks, world_.map.size());
    CompareNodes();
    CompareSets();
    CompareCopies();
    std::map<BlockKey, int> visits;
    world_.map.ForEachParentsFirst([&](const BlockNode& node) {
      EXPECT_TRUE(node.index == 0 || visits.contains(node.parent_key)) << "visited before its parent";
      EXPECT_EQ(++visits[node.key], 1);
    });
    EXPECT_EQ(visits.size(), model_.nodes().size());
  }

  // Drops all pins and guards, then all blocks: every slot that the map took comes back once.
  void Finish() {
    while (!uses_.empty()) UnpinOne();
    for (uint32_t i = 0; i < kRoots; ++i) {
      if (BlockNode* root = world_.map.FindRoot(TestRoot(i))) world_.map.Erase(root);
    }
    EXPECT_EQ(world_.map.size(), 0u);
    EXPECT_EQ(world_.freed, taken_);
    for (const BlockSetKind set : kAllSets) {
      EXPECT_EQ(world_.map.digest(set), SetDigest());
      EXPECT_TRUE(world_.replay.set(set).empty());
    }
  }

 private:
  // One pin, or one guard.
  struct Use {
    BlockCopy* copy;
    bool is_guard;
  };

  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  Tier DrawTier() { return kAllTiers[Draw(3)]; }

  BlockCopy* Attached(uint64_t slot) {
    const PrefixMapModel::Copy& copy = model_.copies().at(slot);
    return world_.map.Find(copy.key)->copy(copy.tier);
  }
  std::optional<uint64_t> DrawAttached() {
    std::vector<uint64_t> slots;
    for (const auto& [slot, copy] : model_.copies()) {
      if (copy.attached) slots.push_back(slot);
    }
    if (slots.empty()) return std::nullopt;
    return slots[Draw(static_cast<uint32_t>(slots.size()))];
  }

  // Mostly a block that may be added now.
  const Place& DrawPlace(Tier tier, LossyFormats lossy) {
    std::vector<const Place*> open;
    for (const Place& place : forest_) {
      const BlockHeader header = MapWorld::Header(place.root, place.parent, place.key, lossy);
      if (model_.CheckAdd(header, place.index, tier) == absl::StatusCode::kOk) open.push_back(&place);
    }
    return open.empty() || Draw(10) == 0 ? forest_[Draw(kBlocks)] : *open[Draw(static_cast<uint32_t>(open.size()))];
  }

  std::string AddOne() {
    const Tier tier = DrawTier();
    // Half of the copies are exact, the others have one or both of two formats.
    const LossyFormats lossy(Draw(2) == 0 ? 0 : Draw(4) << 4);
    const Place& place = DrawPlace(tier, lossy);
    BlockHeader header = MapWorld::Header(place.root, place.parent, place.key, lossy);
    uint32_t index = place.index;
    switch (Draw(40)) {
      case 0:
        header.parent = forest_[Draw(kBlocks)].key;
        break;
      case 1:
        header.root = TestRoot(Draw(kRoots));
        break;
      case 2:
        index += 1;
        break;
      case 3:
        header.parent = RootAsParent(place.root);
        break;
      default:
        break;
    }
    const uint64_t slot = world_.next_slot;
    const bool held = world_.CopyOf(header.key, tier) != nullptr;
    const uint64_t changes = world_.changes;
    const absl::StatusCode expected = model_.Add(header, index, tier, slot);
    const absl::StatusOr<BlockNode*> added = world_.Add(header, index, tier);
    EXPECT_EQ(added.status().code(), expected) << added.status();
    if (added.ok()) {
      taken_.insert(slot);
      counts_.deepest = std::max(counts_.deepest, (*added)->index);
      if (held) ++counts_.replaced;
      if (held && (*added)->first_child != nullptr) ++counts_.replaced_above_children;
      if (held && world_.changes == changes) ++counts_.replaced_out_of_sight;
    } else {
      ++counts_.refused_adds;
    }
    return "add " + place.key.ToHex() + " to tier " + std::to_string(static_cast<int>(tier)) + ": " +
           added.status().ToString();
  }
  std::string EvictVictim() {
    BlockCopy* victim = world_.map.Victim(DrawTier());
    if (victim == nullptr || !world_.map.CanEvict(*victim)) return "evict nothing";
    const uint64_t slot = victim->slot;
    ++counts_.evicted[static_cast<size_t>(victim->tier)];
    const BlockKey key = victim->node->key;
    const LossyFormats lossy = victim->header.lossy_formats;
    const bool was_on_device = victim->tier == Tier::kDevice;
    model_.Lose(slot);
    world_.map.Evict(victim);
    const BlockCopy* host = world_.CopyOf(key, Tier::kHost);
    if (was_on_device && host != nullptr && host->header.lossy_formats != lossy) ++counts_.evicted_to_lossier;
    return "evict slot " + std::to_string(slot);
  }
  std::string LoseOne() {
    const std::optional<uint64_t> slot = DrawAttached();
    if (!slot) return "lose nothing";
    const size_t before = world_.replay.set(BlockSetKind::kMemory).size();
    world_.map.Lose(Attached(*slot));
    model_.Lose(*slot);
    if (world_.replay.set(BlockSetKind::kMemory).size() + 1 < before) ++counts_.losses_with_descendants;
    return "lose slot " + std::to_string(*slot);
  }
  std::string EraseOne() {
    const std::optional<uint64_t> slot = DrawAttached();
    if (!slot) return "erase nothing";
    const BlockKey key = model_.copies().at(*slot).key;
    world_.map.Erase(world_.map.Find(key));
    model_.Erase(key);
    return "erase " + key.ToHex();
  }
  std::string EraseRoot() {
    const RootKey root = TestRoot(Draw(kRoots));
    if (BlockNode* node = world_.map.FindRoot(root)) world_.map.Erase(node);
    model_.EraseRoot(root);
    return "erase root " + root.ToHex();
  }
  // Pins or guards an attached copy, or one that is in use already.
  std::string PinOne() {
    BlockCopy* copy = nullptr;
    if (!uses_.empty() && Draw(3) == 0) {
      copy = uses_[Draw(static_cast<uint32_t>(uses_.size()))].copy;
    } else if (const std::optional<uint64_t> slot = DrawAttached()) {
      copy = Attached(*slot);
    }
    if (copy == nullptr) return "pin nothing";
    if (copy->node == nullptr) ++counts_.pinned_while_detached;
    uses_.push_back({copy, Draw(3) == 0});
    if (uses_.back().is_guard) {
      world_.map.Guard(copy);
      model_.Guard(copy->slot);
      return "guard slot " + std::to_string(copy->slot);
    }
    world_.map.Pin(copy);
    model_.Pin(copy->slot);
    return "pin slot " + std::to_string(copy->slot);
  }
  std::string UnpinOne() {
    if (uses_.empty()) return "unpin nothing";
    std::swap(uses_[Draw(static_cast<uint32_t>(uses_.size()))], uses_.back());
    const Use use = uses_.back();
    uses_.pop_back();
    const uint64_t slot = use.copy->slot;
    const size_t freed_before = world_.freed.size();
    if (use.is_guard) {
      world_.map.Unguard(use.copy);
      model_.Unguard(slot);
    } else {
      world_.map.Unpin(use.copy);
      model_.Unpin(slot);
    }
    counts_.freed_by_unpin += world_.freed.size() - freed_before;
    return std::string(use.is_guard ? "unguard" : "unpin") + " slot " + std::to_string(slot);
  }
  // A chain from its block 0, as Acquire does.
  std::string TouchOne() {
    const std::optional<uint64_t> slot = DrawAttached();
    if (!slot) return "touch nothing";
    std::vector<BlockNode*> chain;
    std::vector<BlockKey> keys;
    for (BlockNode* n = world_.map.Find(model_.copies().at(*slot).key); !n->is_root; n = n->parent) {
      chain.insert(chain.begin(), n);
      keys.insert(keys.begin(), n->key);
    }
    world_.map.Touch(chain);
    model_.Touch(keys);
    return "touch up to " + keys.back().ToHex();
  }

  void CompareNodes() {
    for (const Place& place : forest_) {
      const BlockNode* node = world_.map.Find(place.key);
      const auto expected = model_.nodes().find(place.key);
      ASSERT_EQ(node != nullptr, expected != model_.nodes().end());
      if (node == nullptr) continue;
      EXPECT_EQ(node->parent_key, expected->second.parent);
      EXPECT_EQ(node->root, expected->second.root);
      EXPECT_EQ(node->index, expected->second.index);
      EXPECT_EQ(node->last_use, expected->second.last_use);
      EXPECT_EQ(node->parent->key, node->parent_key);
      for (const Tier tier : kAllTiers) {
        const auto slot = expected->second.slots.find(tier);
        ASSERT_EQ(node->copy(tier) != nullptr, slot != expected->second.slots.end());
        if (node->copy(tier) == nullptr) continue;
        EXPECT_EQ(node->copy(tier)->slot, slot->second);
        EXPECT_EQ(node->copy(tier)->header.lossy_formats, model_.copies().at(slot->second).lossy_formats);
        EXPECT_EQ(node->copy(tier)->node, node);
      }
    }
    for (uint32_t i = 0; i < kRoots; ++i) {
      const BlockNode* root = world_.map.FindRoot(TestRoot(i));
      bool expected = false;
      for (const auto& [key, node] : model_.nodes()) expected = expected || node.root == TestRoot(i);
      ASSERT_EQ(root != nullptr, expected);
      if (root == nullptr) continue;
      EXPECT_TRUE(root->is_root);
      EXPECT_NE(root->first_child, nullptr);
    }
  }
  void CompareSets() {
    for (const BlockSetKind set : kAllSets) {
      SetReplay::Set expected;
      for (const auto& [key, node] : model_.nodes()) {
        if (PrefixMapModel::In(node, set)) expected[key] = {node.parent, model_.LossyIn(node, set)};
      }
      EXPECT_EQ(world_.replay.set(set), expected) << "set " << static_cast<int>(set);
      EXPECT_EQ(world_.map.digest(set), world_.replay.Digest(set)) << "set " << static_cast<int>(set);
    }
  }
  void CompareCopies() {
    std::array<uint64_t, 3> attached{}, pinned{};
    for (const auto& [slot, copy] : model_.copies()) {
      attached[static_cast<size_t>(copy.tier)] += copy.attached ? 1 : 0;
      pinned[static_cast<size_t>(copy.tier)] += copy.pins > 0 ? 1 : 0;
      if (!copy.attached) continue;
      EXPECT_EQ(Attached(slot)->pins, copy.pins);
      EXPECT_EQ(Attached(slot)->guards, copy.guards);
      EXPECT_EQ(world_.map.CanEvict(*Attached(slot)), model_.CanEvict(slot)) << "slot " << slot;
    }
    for (const Tier tier : kAllTiers) {
      EXPECT_EQ(world_.Copies(tier), attached[static_cast<size_t>(tier)]);
      EXPECT_EQ(world_.map.pinned(tier), pinned[static_cast<size_t>(tier)]);
      const BlockCopy* victim = world_.map.Victim(tier);
      const std::optional<uint64_t> expected = model_.Victim(tier);
      ASSERT_EQ(victim != nullptr, expected.has_value()) << "tier " << static_cast<int>(tier);
      if (victim == nullptr) continue;
      EXPECT_EQ(victim->slot, *expected) << "tier " << static_cast<int>(tier);
    }
    EXPECT_EQ(world_.freed, model_.freed());
  }

  std::mt19937 random_;
  Counts counts_;
  std::vector<Place> forest_;
  MapWorld world_;
  PrefixMapModel model_;
  std::vector<Use> uses_;
  std::set<uint64_t> taken_;  // slots that the map accepted
};

TEST(PrefixMapOracleTest, EveryStepAgreesWithTheLiteralModel) {
  Stream::Counts all;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Stream stream(seed);
    for (int i = 0; i < kOperations; ++i) {
      const std::string what = stream.Step();
      SCOPED_TRACE(testing::Message() << "operation " << i << ": " << what);
      stream.Compare();
      if (HasFailure()) break;
    }
    stream.Finish();
    if (HasFailure()) return;
    const Stream::Counts& counts = stream.counts();
    all.most_blocks = std::max(all.most_blocks, counts.most_blocks);
    all.deepest = std::max(all.deepest, counts.deepest);
    for (size_t tier = 0; tier < 3; ++tier) all.evicted[tier] += counts.evicted[tier];
    all.losses_with_descendants += counts.losses_with_descendants;
    all.pinned_while_detached += counts.pinned_while_detached;
    all.freed_by_unpin += counts.freed_by_unpin;
    all.refused_adds += counts.refused_adds;
    all.replaced += counts.replaced;
    all.replaced_above_children += counts.replaced_above_children;
    all.replaced_out_of_sight += counts.replaced_out_of_sight;
    all.evicted_to_lossier += counts.evicted_to_lossier;
  }
  EXPECT_GT(all.most_blocks, 20u);
  EXPECT_GT(all.deepest, 5u);
  for (const uint64_t evicted : all.evicted) EXPECT_GT(evicted, kSeeds);
  EXPECT_GT(all.losses_with_descendants, kSeeds / 4);
  EXPECT_GT(all.pinned_while_detached, kSeeds / 4);
  EXPECT_GT(all.freed_by_unpin, kSeeds / 4);
  EXPECT_GT(all.refused_adds, kSeeds);
  EXPECT_GT(all.replaced, kSeeds);
  EXPECT_GT(all.replaced_above_children, kSeeds / 4);
  EXPECT_GT(all.replaced_out_of_sight, kSeeds / 4);
  EXPECT_GT(all.evicted_to_lossier, kSeeds / 4);
}

}  // namespace
}  // namespace kvmesh
