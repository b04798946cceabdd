// Changes and states of a block store as messages of the report stream.
#ifndef KVMESH_WORKER_REPORT_EVENT_MESSAGES_H_
#define KVMESH_WORKER_REPORT_EVENT_MESSAGES_H_

#include <cstddef>

#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/tiers/block_store.h"
#include "kvstore/tiers/event_log.h"

namespace kvmesh {

// One Event per event of the log, with its sequence number.
void ToMessage(const StoreEvent& event, v1::Event& out);
void ToMessage(BlockSetKind set, const SetDigest& digest, v1::DigestEvent& out);

// Cuts a state into snapshot pieces: for each set its blocks, parents first, blocks that continue a chain packed into
// one run; the last piece carries the digests of all sets. Not thread safe.
class SnapshotPieces {
 public:
  // A piece is about `piece_bytes` at most. REQUIRES: piece_bytes >= 256.
  SnapshotPieces(BlockStore::Cut cut, size_t piece_bytes);

  // Overwrites `piece` with the next one; false when there was none left.
  bool Next(v1::SnapshotPiece& piece);

 private:
  // Moves to the next block that is in the current set, or on to the next set. False at the end.
  bool Seek();
  void AppendRun(v1::SnapshotPiece& piece, size_t& bytes_left);

  const BlockStore::Cut cut_;
  const size_t piece_bytes_;
  size_t set_ = 0;       // in kAllSets
  size_t block_ = 0;     // in cut_.blocks
  size_t boundary_ = 0;  // in cut_.boundaries
  bool first_ = true;
  bool done_ = false;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_EVENT_MESSAGES_H_
