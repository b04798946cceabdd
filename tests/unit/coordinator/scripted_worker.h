// A worker's side of a report stream, as messages: it keeps its three sets in the literal model and says what they are.
#ifndef KVMESH_TESTS_UNIT_COORDINATOR_SCRIPTED_WORKER_H_
#define KVMESH_TESTS_UNIT_COORDINATOR_SCRIPTED_WORKER_H_

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/report/report_messages.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/wire/wire.h"
#include "tests/support/block_content.h"
#include "tests/unit/coordinator/prefix_index/model_index.h"

namespace kvmesh {

class ScriptedWorker {
 public:
  explicit ScriptedWorker(std::string id, uint8_t incarnation = 1, uint32_t block_tokens = 16) {
    info_.set_worker_id(std::move(id));
    info_.set_incarnation(std::string(16, static_cast<char>(incarnation)));
    info_.set_address("127.0.0.1:1" + std::to_string(1000 + incarnation));
    info_.set_protocol_version(1);
    info_.set_layout_fingerprint("layout-1");
    info_.set_block_tokens(block_tokens);
    info_.set_block_bytes(1 << 20);
  }

  v1::WorkerInfo& info() { return info_; }
  const std::string& id() const { return info_.worker_id(); }
  uint64_t sequence() const { return sequence_; }
  ModelSet& set(IndexSet set) { return sets_[IndexOf(set)]; }

  v1::ReportRequest Register() const {
    v1::ReportRequest request;
    *request.mutable_register_() = info_;
    return request;
  }
  // The chain's blocks from `first` on join the set.
  v1::ReportRequest Stored(IndexSet set, const RootKey& root, std::span<const BlockKey> chain, uint32_t first = 0,
                           LossyFormats lossy = {}) {
    const StoredRun run = {.root = root,
                           .parent = first == 0 ? RootAsParent(root) : chain[first - 1],
                           .first_block = first,
                           .keys = chain.subspan(first),
                           .lossy_formats = lossy};
    sets_[IndexOf(set)].Store(run);
    roots_.insert(root);
    v1::ReportRequest request;
    FillStored(set, run, *NextEvent(request).mutable_stored());
    return request;
  }
  v1::ReportRequest Truncated(IndexSet set, const BlockKey& key) {
    sets_[IndexOf(set)].Truncate(key);
    v1::ReportRequest request;
    v1::TruncatedEvent& event = *NextEvent(request).mutable_truncated();
    event.set_set(ToWire(set));
    event.set_key(key.ToString());
    return request;
  }
  v1::ReportRequest Cleared(IndexSet set) {
    sets_[IndexOf(set)].Clear();
    v1::ReportRequest request;
    NextEvent(request).mutable_cleared()->set_set(ToWire(set));
    return request;
  }
  v1::ReportRequest Usable(std::span<const BlockKey> keys, bool usable) {
    v1::ReportRequest request;
    v1::UsableEvent& event = *NextEvent(request).mutable_usable();
    event.set_keys(std::string(KeysToBytes(keys)));
    event.set_usable(usable);
    return request;
  }
  v1::ReportRequest Digest(IndexSet set) {
    v1::ReportRequest request;
    FillDigest(set, *NextEvent(request).mutable_digest());
    return request;
  }
  // An event that never arrives.
  void Lose() { ++sequence_; }
  // An event with the next sequence number, for the caller to fill.
  v1::Event& NextEvent(v1::ReportRequest& request) {
    v1::Event& event = *request.mutable_events()->add_events();
    event.set_sequence(++sequence_);
    return event;
  }

  // The sets as they are now, one block a run and at most `runs_per_piece` runs a piece.
  std::vector<v1::ReportRequest> Snapshot(size_t runs_per_piece = 4) const {
    std::vector<v1::ReportRequest> pieces(1);
    for (const IndexSet set : kAllIndexSets) {
      for (const RootKey& root : roots_) {
        std::vector<std::pair<BlockKey, uint32_t>> open = {{RootAsParent(root), 0}};
        while (!open.empty()) {
          const auto [parent, depth] = open.back();
          open.pop_back();
          for (const auto& [key, block] : sets_[IndexOf(set)].blocks()) {
            if (block.parent != parent) continue;
            if (static_cast<size_t>(pieces.back().snapshot().runs_size()) == runs_per_piece) pieces.emplace_back();
            FillStored(set,
                       {.root = root,
                        .parent = parent,
                        .first_block = depth,
                        .keys = {&key, 1},
                        .lossy_formats = block.lossy_formats},
                       *pieces.back().mutable_snapshot()->add_runs());
            open.push_back({key, depth + 1});
          }
        }
      }
    }
    for (v1::ReportRequest& piece : pieces) piece.mutable_snapshot()->set_sequence(sequence_);
    pieces.front().mutable_snapshot()->set_first(true);
    pieces.back().mutable_snapshot()->set_last(true);
    for (const IndexSet set : kAllIndexSets) FillDigest(set, *pieces.back().mutable_snapshot()->add_digests());
    return pieces;
  }

 private:
  static void FillStored(IndexSet set, const StoredRun& run, v1::StoredEvent& event) {
    event.set_set(ToWire(set));
    event.set_root(run.root.ToString());
    event.set_parent(run.parent.ToString());
    event.set_first_block(run.first_block);
    event.set_keys(std::string(KeysToBytes(run.keys)));
    event.set_lossy_formats(run.lossy_formats.bits());
  }
  void FillDigest(IndexSet set, v1::DigestEvent& event) const {
    const SetSummary summary = sets_[IndexOf(set)].Summary();
    event.set_set(ToWire(set));
    event.set_sum(summary.sum.ToString());
    event.set_count(summary.count);
  }

  v1::WorkerInfo info_;
  std::array<ModelSet, kIndexSets> sets_;
  std::set<RootKey> roots_;
  uint64_t sequence_ = 0;
};

// The kinds of `responses` in order, e.g. "registered,resync:1,applied:7".
inline std::string Kinds(const std::vector<v1::ReportResponse>& responses) {
  std::string out;
  for (const v1::ReportResponse& response : responses) {
    if (!out.empty()) out += ",";
    if (response.has_registered()) out += "registered";
    if (response.has_resync()) out += "resync:" + std::to_string(response.resync().reason());
    if (response.has_command()) out += "command";
    if (response.kind_case() == v1::ReportResponse::kAppliedSequence) {
      out += "applied:" + std::to_string(response.applied_sequence());
    }
  }
  return out;
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_COORDINATOR_SCRIPTED_WORKER_H_
