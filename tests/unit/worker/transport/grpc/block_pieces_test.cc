#include "worker/transport/grpc/block_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/block_content.h"
#include "tests/unit/worker/transport/grpc/fetch_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

constexpr size_t kPayload = 1000;

class BlockPiecesTest : public testing::Test {
 protected:
  BlockPiecesTest() : layout_(ComputeLayoutFingerprint(TestLayout())), targets_(2, kPayload) {}

  BlockHeader Header(uint32_t index) const {
    BlockHeader header;
    header.root = root_;
    header.key = keys_[index];
    header.parent = index == 0 ? RootAsParent(root_) : keys_[index - 1];
    header.start_position = index * kTestBlockTokens;
    header.layout = layout_;
    header.format = KvFormat::kF32;
    header.seal_time = absl::FromUnixMicros(7);
    header.payload_bytes = kPayload;
    header.checksum = ComputeChecksum(header, Payload(index));
    return header;
  }
  std::vector<std::byte> Payload(uint32_t index) const {
    std::vector<std::byte> payload(kPayload);
    FillBlock(keys_[index], payload);
    return payload;
  }
  // The stream of `count` blocks from `first`.
  std::vector<v1::BlockPiece> Pieces(size_t piece_bytes, uint32_t first = 0, uint32_t count = 2) const {
    std::vector<v1::BlockPiece> pieces;
    PieceBuffers buffers(piece_bytes);
    for (uint32_t i = first; i < first + count; ++i) {
      EXPECT_TRUE(WriteBlock(Header(i), Payload(i), buffers, [&pieces](const grpc::ByteBuffer& piece) {
        pieces.push_back(Decoded(piece));
        return true;
      }));
    }
    return pieces;
  }
  // The first error of a stream, or OK.
  absl::Status Feed(const std::vector<v1::BlockPiece>& pieces) {
    BlockAssembler assembler(layout_, targets_.spans());
    for (const v1::BlockPiece& piece : pieces) {
      grpc::ByteBuffer message = InSlices(piece.SerializeAsString(), 100);
      KVMESH_RETURN_IF_ERROR(assembler.Take(message).status());
    }
    return absl::OkStatus();
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 0, 4);
  const LayoutFingerprint layout_;
  Targets targets_;
};

TEST_F(BlockPiecesTest, BlocksOfAnyPieceSizeArriveWhole) {
  for (const size_t piece_bytes : {size_t{1}, size_t{333}, kPayload - 1, kPayload, kPayload + 1, kMaxPieceBytes}) {
    SCOPED_TRACE(piece_bytes);
    targets_.Fill(std::byte{0});
    BlockAssembler assembler(layout_, targets_.spans());
    std::vector<BlockHeader> completed;
    for (const v1::BlockPiece& piece : Pieces(piece_bytes)) {
      EXPECT_FALSE(assembler.complete());
      grpc::ByteBuffer message = Encoded(piece);
      const auto header = assembler.Take(message);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->has_value(), piece.last());
      if (*header) completed.push_back(**header);
    }
    EXPECT_TRUE(assembler.complete());
    EXPECT_EQ(assembler.bytes(), 2 * kPayload);
    EXPECT_EQ(completed, (std::vector<BlockHeader>{Header(0), Header(1)}));
    EXPECT_TRUE(HoldsBlock(keys_[0], targets_.block(0)));
    EXPECT_TRUE(HoldsBlock(keys_[1], targets_.block(1)));
  }
}

TEST_F(BlockPiecesTest, EncodedPiecesArriveWhateverTheirSlices) {
  for (const size_t slice_bytes : {size_t{1}, size_t{7}, size_t{118}, size_t{10'000}}) {
    SCOPED_TRACE(slice_bytes);
    targets_.Fill(std::byte{0});
    BlockAssembler assembler(layout_, targets_.spans());
    for (const v1::BlockPiece& piece : Pieces(333)) {
      grpc::ByteBuffer message = InSlices(piece.SerializeAsString(), slice_bytes);
      const auto header = assembler.Take(message);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->has_value(), piece.last());
    }
    EXPECT_TRUE(assembler.complete());
    EXPECT_TRUE(HoldsBlock(keys_[0], targets_.block(0)));
    EXPECT_TRUE(HoldsBlock(keys_[1], targets_.block(1)));
  }
}

TEST_F(BlockPiecesTest, EncodedFieldsMayComeInAnyOrderWithUnknownOnes) {
  const v1::BlockPiece piece = Pieces(kPayload)[0];
  v1::BlockPiece header, payload, last;
  header.set_header(piece.header());
  payload.set_payload(piece.payload());
  last.set_last(true);
  const std::string unknown = "\x7a\x03xyz";    // field 15, three bytes
  const std::string old_payload = "\x12\x01x";  // the later payload counts
  grpc::ByteBuffer message = InSlices(
      old_payload + last.SerializeAsString() + payload.SerializeAsString() + unknown + header.SerializeAsString(), 50);
  BlockAssembler assembler(layout_, targets_.spans());
  const auto taken = assembler.Take(message);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(**taken, Header(0));
  EXPECT_TRUE(HoldsBlock(keys_[0], targets_.block(0)));
}

TEST_F(BlockPiecesTest, BytesThatAreNoPieceAreDataLoss) {
  const std::string good = Pieces(kPayload)[0].SerializeAsString();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = good;
    if (random() % 2 == 0) bytes.resize(random() % bytes.size());
    for (int flips = static_cast<int>(random() % 3); flips > 0 && !bytes.empty(); --flips) {
      // The first bytes hold tags and lengths.
      bytes[random() % std::min<size_t>(bytes.size(), random() % 2 == 0 ? 130 : bytes.size())] =
          static_cast<char>(random());
    }
    grpc::ByteBuffer message = InSlices(bytes, 1 + random() % 200);
    BlockAssembler assembler(layout_, targets_.spans());
    const auto taken = assembler.Take(message);
    v1::BlockPiece decoded;
    if (!decoded.ParseFromString(bytes)) {
      EXPECT_TRUE(absl::IsDataLoss(taken.status())) << taken.status();
      continue;
    }
    BlockAssembler reference(layout_, targets_.spans());
    grpc::ByteBuffer canonical = Encoded(decoded);
    EXPECT_EQ(taken.status(), reference.Take(canonical).status());
  }
}

TEST_F(BlockPiecesTest, WriterThatFailsStopsTheBlock) {
  PieceBuffers buffers(100);
  int writes = 0;
  EXPECT_FALSE(WriteBlock(Header(0), Payload(0), buffers, [&writes](const grpc::ByteBuffer&) { return ++writes < 3; }));
  EXPECT_EQ(writes, 3);
}

TEST_F(BlockPiecesTest, MalformedStreamIsDataLossThatNamesWhy) {
  struct Case {
    std::string name;
    std::function<void(std::vector<v1::BlockPiece>&)> damage;
    std::string why;
  };
  const Case cases[] = {
      {"missing header", [](auto& p) { p[0].clear_header(); }, "no header"},
      {"second header", [](auto& p) { p[1].set_header(p[0].header()); }, "a second header"},
      {"short header", [](auto& p) { p[0].mutable_header()->pop_back(); }, "shorter"},
      {"long header", [](auto& p) { p[0].mutable_header()->push_back('x'); }, "bytes after the header"},
      {"wrong magic", [](auto& p) { p[0].mutable_header()->at(0) ^= 1; }, "magic"},
      {"unknown version", [](auto& p) { p[0].mutable_header()->at(4) = 9; }, "version 9"},
      {"other layout", [](auto& p) { p[0].mutable_header()->at(76) ^= 1; }, "another layout"},
      {"other payload size", [](auto& p) { p[0].mutable_header()->at(100) ^= 1; }, "the target has"},
      {"empty piece", [](auto& p) { p[1].clear_payload(); }, "without payload"},
      {"last too early", [](auto& p) { p[1].set_last(true); }, "less payload"},
      {"never last", [](auto& p) { p[3].set_last(false); }, "not ended"},
      {"too much payload", [](auto& p) { p[3].mutable_payload()->push_back('x'); }, "more payload"},
      {"too little payload", [](auto& p) { p[3].mutable_payload()->pop_back(); }, "less payload"},
      {"huge piece", [](auto& p) { p[0].mutable_payload()->resize(kMaxPieceBytes + 1); }, "at most"},
      {"blocks swapped", [](auto& p) { std::rotate(p.begin(), p.begin() + 4, p.end()); }, "does not follow"},
      {"a block again", [](auto& p) { p.erase(p.begin() + 4, p.end()), p.insert(p.end(), p.begin(), p.begin() + 4); },
       "does not follow"},
      {"block cut off", [](auto& p) { p.erase(p.begin() + 2, p.begin() + 4); }, "a second header"},
      {"more blocks", [](auto& p) { p.push_back(p[0]); }, "more blocks"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    std::vector<v1::BlockPiece> pieces = Pieces(250);
    ASSERT_EQ(pieces.size(), 8u);
    c.damage(pieces);
    const absl::Status status = Feed(pieces);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.why));
  }
}

TEST_F(BlockPiecesTest, AnyDamageStaysInsideTheTargets) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    // Guards before, between and after the targets.
    std::vector<std::byte> memory(3 * 64 + 2 * kPayload, std::byte{0xa5});
    const std::span<std::byte> all(memory);
    BlockAssembler assembler(layout_, {all.subspan(64, kPayload), all.subspan(128 + kPayload, kPayload)});
    std::vector<v1::BlockPiece> pieces = Pieces(1 + random() % 400);
    for (int damage = 0; damage < 3; ++damage) {
      v1::BlockPiece& piece = pieces[random() % pieces.size()];
      switch (random() % 5) {
        case 0:
          if (!piece.header().empty())
            piece.mutable_header()->at(random() % piece.header().size()) ^= 1 << random() % 8;
          break;
        case 1:
          piece.mutable_payload()->resize(random() % 500);
          break;
        case 2:
          piece.set_last(!piece.last());
          break;
        case 3:
          std::swap(piece, pieces[random() % pieces.size()]);
          break;
        default:
          pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(random() % pieces.size()));
          if (pieces.empty()) pieces = Pieces(100);
      }
    }
    for (const v1::BlockPiece& piece : pieces) {
      grpc::ByteBuffer message = Encoded(piece);
      const auto taken = assembler.Take(message);
      if (!taken.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(taken.status())) << taken.status();
        break;
      }
    }
    for (const size_t guard : {size_t{0}, 64 + kPayload, 128 + 2 * kPayload}) {
      for (size_t i = 0; i < 64; ++i) ASSERT_EQ(memory[guard + i], std::byte{0xa5}) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace kvmesh
