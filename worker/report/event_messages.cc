#include "worker/report/event_messages.h"

#include <string>
#include <utility>

#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

// Bytes of a run besides its keys: root, parent, numbers, tags; rounded up.
constexpr size_t kRunOverheadBytes = 64;
constexpr size_t kMinPieceBytes = 256;
static_assert(kMinPieceBytes >= 2 * (kRunOverheadBytes + BlockKey::kSize));

v1::BlockSet ToWire(BlockSetKind set) {
  switch (set) {
    case BlockSetKind::kDevice:
      return v1::BLOCK_SET_DEVICE;
    case BlockSetKind::kMemory:
      return v1::BLOCK_SET_MEMORY;
    case BlockSetKind::kDisk:
      break;
  }
  return v1::BLOCK_SET_DISK;
}

}  // namespace

void ToMessage(BlockSetKind set, const SetDigest& digest, v1::DigestEvent& out) {
  out.set_set(ToWire(set));
  out.set_sum(digest.SumBytes());
  out.set_count(digest.count());
}

void ToMessage(const StoreEvent& event, v1::Event& out) {
  out.set_sequence(event.sequence);
  switch (event.kind) {
    case StoreEvent::Kind::kStored: {
      v1::StoredEvent& stored = *out.mutable_stored();
      stored.set_set(ToWire(event.set));
      stored.set_root(event.root.ToString());
      stored.set_parent(event.parent.ToString());
      stored.set_first_block(event.index);
      stored.set_keys(event.key.ToString());
      stored.set_lossy_formats(event.lossy_formats.bits());
      break;
    }
    case StoreEvent::Kind::kTruncated:
      out.mutable_truncated()->set_set(ToWire(event.set));
      out.mutable_truncated()->set_key(event.key.ToString());
      break;
    case StoreEvent::Kind::kDigest:
      ToMessage(event.set, event.digest, *out.mutable_digest());
      break;
    case StoreEvent::Kind::kUsable:
    case StoreEvent::Kind::kUnusable:
      out.mutable_usable()->set_keys(event.key.ToString());
      out.mutable_usable()->set_usable(event.kind == StoreEvent::Kind::kUsable);
      break;
  }
}

SnapshotPieces::SnapshotPieces(BlockStore::Cut cut, size_t piece_bytes)
    : cut_(std::move(cut)), piece_bytes_(piece_bytes) {
  KVMESH_CHECK(piece_bytes >= kMinPieceBytes, "snapshot pieces too small for a run");
}

bool SnapshotPieces::Seek() {
  for (; set_ < kAllSets.size(); ++set_, block_ = 0) {
    for (; block_ < cut_.blocks.size(); ++block_) {
      if (cut_.blocks[block_].lossy_formats[set_]) return true;
    }
  }
  return false;
}

void SnapshotPieces::AppendRun(v1::SnapshotPiece& piece, size_t& bytes_left) {
  const BlockStore::CutBlock& head = cut_.blocks[block_];
  v1::StoredEvent& run = *piece.add_runs();
  run.set_set(ToWire(kAllSets[set_]));
  run.set_root(head.root.ToString());
  run.set_parent(head.parent.ToString());
  run.set_first_block(head.index);
  run.set_lossy_formats(head.lossy_formats[set_]->bits());
  bytes_left -= kRunOverheadBytes;
  std::string& keys = *run.mutable_keys();
  BlockKey last = head.parent;
  for (; block_ < cut_.blocks.size() && bytes_left >= BlockKey::kSize; ++block_) {
    const BlockStore::CutBlock& block = cut_.blocks[block_];
    const bool continues =
        block.parent == last && block.root == head.root && block.lossy_formats[set_] == head.lossy_formats[set_];
    if (!continues) break;
    keys.append(block.key.view().data(), BlockKey::kSize);
    bytes_left -= BlockKey::kSize;
    last = block.key;
  }
}

bool SnapshotPieces::Next(v1::SnapshotPiece& piece) {
  if (done_) return false;
  piece.Clear();
  piece.set_sequence(cut_.sequence);
  piece.set_first(std::exchange(first_, false));
  size_t bytes_left = piece_bytes_;
  while (bytes_left >= kRunOverheadBytes + BlockKey::kSize) {
    if (!Seek()) {
      for (; bytes_left >= BlockKey::kSize && boundary_ < cut_.boundaries.size(); bytes_left -= BlockKey::kSize) {
        const BlockKey& key = cut_.boundaries[boundary_++];
        piece.mutable_usable_keys()->append(key.view().data(), BlockKey::kSize);
      }
      if (boundary_ < cut_.boundaries.size()) break;
      done_ = true;
      piece.set_last(true);
      for (const BlockSetKind set : kAllSets) {
        ToMessage(set, cut_.digests[static_cast<size_t>(set)], *piece.add_digests());
      }
      break;
    }
    AppendRun(piece, bytes_left);
  }
  return true;
}

}  // namespace kvmesh
