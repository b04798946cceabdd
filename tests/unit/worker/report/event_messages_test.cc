#include "worker/report/event_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "tests/unit/worker/report/report_world.h"
#include "worker/report/backoff.h"
#include "worker/report/event_feed.h"

namespace kvmesh {
namespace {

std::vector<v1::SnapshotPiece> AllPieces(BlockStore::Cut cut, size_t piece_bytes = 1 << 20) {
  SnapshotPieces pieces(std::move(cut), piece_bytes);
  std::vector<v1::SnapshotPiece> out;
  v1::SnapshotPiece piece;
  while (pieces.Next(piece)) out.push_back(piece);
  return out;
}

TEST(SnapshotPiecesTest, EmptyStateIsOnePieceWithDigests) {
  TestStore world;
  const auto pieces = AllPieces(world.store->TakeCut());
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_TRUE(pieces[0].first());
  EXPECT_TRUE(pieces[0].last());
  EXPECT_EQ(pieces[0].runs_size(), 0);
  EXPECT_EQ(pieces[0].digests_size(), 3);
}

TEST(SnapshotPiecesTest, UsableBoundariesAreInThePiecesThatHaveRoom) {
  TestStore world;
  world.Seal(TestRoot(1), TestChain(TestRoot(1), 0, 20));
  BlockStore::Cut cut = world.store->TakeCut();
  cut.boundaries = TestChain(TestRoot(1), 0, 100);
  std::string all;
  for (const BlockKey& key : cut.boundaries) all += key.ToString();
  for (const size_t piece_bytes : {size_t{256}, size_t{1000}, size_t{1} << 20}) {
    SCOPED_TRACE(piece_bytes);
    std::string keys;
    size_t blocks = 0;
    const auto pieces = AllPieces(cut, piece_bytes);
    for (const v1::SnapshotPiece& piece : pieces) {
      EXPECT_LE(piece.usable_keys().size(), piece_bytes);
      keys += piece.usable_keys();
      for (const v1::StoredEvent& run : piece.runs()) blocks += run.keys().size() / BlockKey::kSize;
    }
    EXPECT_EQ(keys, all);
    EXPECT_EQ(blocks, 40u);
    EXPECT_TRUE(pieces.back().last());
    EXPECT_EQ(pieces.back().digests_size(), 3);
  }
}

TEST(EventMessagesTest, UsableBoundariesHaveAMessage) {
  const BlockKey key = TestChain(TestRoot(1), 0, 1)[0];
  for (const bool usable : {true, false}) {
    v1::Event event;
    ToMessage({.sequence = 7, .kind = usable ? StoreEvent::Kind::kUsable : StoreEvent::Kind::kUnusable, .key = key},
              event);
    EXPECT_EQ(event.sequence(), 7u);
    ASSERT_TRUE(event.has_usable());
    EXPECT_EQ(event.usable().keys(), key.ToString());
    EXPECT_EQ(event.usable().usable(), usable);
  }
}

TEST(SnapshotPiecesTest, AChainIsOneRunPerSet) {
  TestStore world;
  const RootKey root = TestRoot(1);
  const std::vector<BlockKey> keys = TestChain(root, 0, 50);
  world.Seal(root, keys);
  const auto pieces = AllPieces(world.store->TakeCut());
  ASSERT_EQ(pieces.size(), 1u);
  ASSERT_EQ(pieces[0].runs_size(), 2);  // device and memory
  for (const v1::StoredEvent& run : pieces[0].runs()) {
    EXPECT_EQ(run.root(), root.ToString());
    EXPECT_EQ(run.parent(), root.ToString());
    EXPECT_EQ(run.first_block(), 0u);
    EXPECT_EQ(run.keys().size(), 50 * BlockKey::kSize);
  }
}

TEST(SnapshotPiecesTest, LossyBlocksHaveTheirOwnRun) {
  TestStore world;
  const RootKey root = TestRoot(1);
  const std::vector<BlockKey> keys = TestChain(root, 0, 6);
  world.Seal(root, {keys.begin(), keys.begin() + 3});
  LossyFormats lossy;
  lossy.Add(KvFormat::kBf16);
  world.Seal(root, keys, lossy);
  const auto pieces = AllPieces(world.store->TakeCut());
  ASSERT_EQ(pieces[0].runs_size(), 4);
  EXPECT_EQ(pieces[0].runs(0).lossy_formats(), 0u);
  EXPECT_EQ(pieces[0].runs(1).lossy_formats(), lossy.bits());
  EXPECT_EQ(pieces[0].runs(1).first_block(), 3u);
  EXPECT_EQ(pieces[0].runs(1).parent(), keys[2].ToString());
}

TEST(SnapshotPiecesTest, RunsEndWhereTheLossyFormatsOfTheirOwnSetChange) {
  TestStore world({.device_slots = 4, .host_format = KvFormat::kInt8, .disk_blocks = 8});
  const RootKey root = TestRoot(1);
  const std::vector<BlockKey> keys = TestChain(root, 0, 4);
  world.Seal(root, keys);
  world.Seal(root, TestChain(root, 1, 2));  // the last two leave the device
  world.store->FlushToDisk(absl::InfiniteFuture());
  LossyFormats int8;
  int8.Add(KvFormat::kInt8);
  const auto pieces = AllPieces(world.store->TakeCut());
  ASSERT_EQ(pieces.size(), 1u);
  using Run = std::tuple<v1::BlockSet, uint32_t, size_t, uint32_t>;  // set, first block, blocks, lossy formats
  std::vector<Run> runs;
  ReportModel model;
  model.OnPiece(pieces[0]);
  for (const v1::StoredEvent& run : pieces[0].runs()) {
    runs.emplace_back(run.set(), run.first_block(), run.keys().size() / BlockKey::kSize, run.lossy_formats());
  }
  EXPECT_THAT(runs, testing::UnorderedElementsAre(
                        Run{v1::BLOCK_SET_DEVICE, 0, 2, 0}, Run{v1::BLOCK_SET_DEVICE, 0, 2, 0},
                        Run{v1::BLOCK_SET_MEMORY, 0, 2, 0}, Run{v1::BLOCK_SET_MEMORY, 0, 2, 0},
                        Run{v1::BLOCK_SET_MEMORY, 2, 2, int8.bits()}, Run{v1::BLOCK_SET_DISK, 0, 2, 0},
                        Run{v1::BLOCK_SET_DISK, 0, 2, 0}, Run{v1::BLOCK_SET_DISK, 2, 2, int8.bits()}));
  EXPECT_TRUE(model.live());
  ExpectEqualSets(world.store->TakeCut(), model.sets());
}

TEST(SnapshotPiecesTest, AnyStateArrivesInPiecesOfAnySize) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  TestStore world({.device_slots = 20, .host_slots = 8, .disk_blocks = 40});
  for (int i = 0; i < 200; ++i) {
    const RootKey root = TestRoot(random() % 3);
    world.Seal(root, TestChain(root, random() % 5, 1 + random() % 12));
  }
  for (const size_t piece_bytes : {size_t{256}, size_t{300}, size_t{1000}, size_t{1} << 20}) {
    const BlockStore::Cut cut = world.store->TakeCut();
    ReportModel model;
    const auto pieces = AllPieces(cut, piece_bytes);
    for (const v1::SnapshotPiece& piece : pieces) {
      EXPECT_EQ(piece.sequence(), cut.sequence);
      EXPECT_LE(piece.ByteSizeLong(), piece_bytes + 128);
      model.OnPiece(piece);
    }
    EXPECT_TRUE(model.live());
    ExpectEqualSets(cut, model.sets());
  }
}

TEST(EventFeedTest, GivesEventsOutInOrderAndThenNothing) {
  TestStore world;
  EventFeed feed(*world.store, {.batch_events = 3});
  world.Seal(TestRoot(1), TestChain(TestRoot(1), 0, 4));  // 8 events
  v1::EventBatch batch;
  std::vector<uint64_t> sequences;
  while (feed.Next(batch) == EventFeed::Outcome::kEvents) {
    EXPECT_LE(batch.events_size(), 3);
    for (const v1::Event& event : batch.events()) sequences.push_back(event.sequence());
  }
  EXPECT_EQ(sequences, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(feed.cursor(), 8u);
  feed.Seek(6);
  ASSERT_EQ(feed.Next(batch), EventFeed::Outcome::kEvents);
  EXPECT_EQ(batch.events(0).sequence(), 7u);
}

TEST(EventFeedTest, FallsBehindWhenTheLogDropsEvents) {
  TestStore world({.event_capacity = 4});
  EventFeed feed(*world.store, {});
  v1::EventBatch batch;
  EXPECT_EQ(feed.Next(batch), EventFeed::Outcome::kNothing);
  world.Seal(TestRoot(1), TestChain(TestRoot(1), 0, 3));
  EXPECT_EQ(feed.Next(batch), EventFeed::Outcome::kFellBehind);
  feed.Seek(world.store->TakeCut().sequence);
  EXPECT_EQ(feed.Next(batch), EventFeed::Outcome::kNothing);
  feed.Seek(100);
  EXPECT_EQ(feed.Next(batch), EventFeed::Outcome::kFellBehind);
}

TEST(EventFeedTest, OneFeedsDigestServesTheOthers) {
  TestStore world;
  const EventFeed::Options options{.digest_events = 4, .digest_interval = absl::Hours(1)};
  EventFeed one(*world.store, options);
  EventFeed two(*world.store, options);
  world.Seal(TestRoot(1), TestChain(TestRoot(1), 0, 3));  // 6 events
  v1::EventBatch batch;
  ASSERT_EQ(one.Next(batch), EventFeed::Outcome::kEvents);
  EXPECT_EQ(world.store->events().last(), 9u) << "three digests";
  ASSERT_EQ(two.Next(batch), EventFeed::Outcome::kEvents);
  EXPECT_EQ(batch.events_size(), 9);
  EXPECT_EQ(world.store->events().last(), 9u);
  ASSERT_EQ(one.Next(batch), EventFeed::Outcome::kEvents);
  EXPECT_EQ(one.Next(batch), EventFeed::Outcome::kNothing);
  EXPECT_EQ(world.store->events().last(), 9u);
}

TEST(BackoffTest, DoublesUpToTheMaximumWithJitter) {
  Backoff backoff({.min = absl::Milliseconds(100), .max = absl::Seconds(1)}, RandomSource::Real());
  for (int round = 0; round < 3; ++round) {
    for (const int64_t step_ms : {100, 200, 400, 800, 1000, 1000}) {
      const absl::Duration pause = backoff.Next();
      EXPECT_GE(pause, absl::Milliseconds(step_ms) / 2);
      EXPECT_LE(pause, absl::Milliseconds(step_ms));
    }
    backoff.Reset();
  }
}

}  // namespace
}  // namespace kvmesh
