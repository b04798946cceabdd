// The state machine of a report stream.
#include "coordinator/report/report_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/prefix_index/literal_prefix_index.h"
#include "kvstore/wire/protocol.h"
#include "tests/unit/coordinator/scripted_worker.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class ReportSessionTest : public testing::Test {
 protected:
  ReportSessionTest() { Open(); }

  void Open() {
    session_ = std::make_unique<ReportSession>(context_, [](v1::ReportResponse) { return true; });
  }
  // Answers to one message, as Kinds says it.
  std::string Send(const v1::ReportRequest& request) {
    std::vector<v1::ReportResponse> out;
    status_ = session_->OnMessage(request, out);
    return Kinds(out);
  }
  // Registers and sends the first snapshot: live.
  void GoLive(ScriptedWorker& worker) {
    EXPECT_EQ(Send(worker.Register()), "registered,resync:1");
    std::string last;
    for (const v1::ReportRequest& piece : worker.Snapshot()) last = Send(piece);
    EXPECT_EQ(last, "applied:" + std::to_string(worker.sequence()));
  }
  std::vector<PrefixMatch> Lookup(const RootKey& root, std::span<const BlockKey> keys) {
    std::vector<PrefixMatch> out;
    index_.Lookup({.root = root, .keys = keys}, 8, out);
    return out;
  }
  uint32_t Found(std::span<const BlockKey> keys) {
    const auto matches = Lookup(root_, keys);
    return matches.empty() ? 0 : matches[0].longest();
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> chain_ = TestChain(root_, 0, 6);
  ManualClock clock_{absl::FromUnixSeconds(1000)};
  Metrics metrics_;
  ReportMetrics counters_{metrics_};
  LiteralPrefixIndex index_{PrefixIndexOptions{}};
  WorkerRegistry registry_{RegistryOptions{}, index_, clock_, nullptr};
  CommandBoard commands_{clock_, counters_};
  ReportContext context_{registry_, index_, commands_, counters_, Incarnation{}};
  std::unique_ptr<ReportSession> session_;
  absl::Status status_;
};

TEST_F(ReportSessionTest, EverythingButRegisterNeedsARegistration) {
  ScriptedWorker worker("a");
  EXPECT_EQ(Send(worker.Stored(IndexSet::kDevice, root_, chain_)), "");
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ReportSessionTest, UsableBoundariesFollowEventsAndSnapshots) {
  ScriptedWorker worker("a");
  worker.info().set_boundaries(v1::BOUNDARIES_USABLE);
  GoLive(worker);
  const UsableBoundaries& boundaries = registry_.Find("a")->boundaries;
  EXPECT_EQ(registry_.Find("a")->description().boundaries, BoundaryRule::kUsable);
  EXPECT_EQ(Send(worker.Usable(std::span(chain_).first(4), true)), "applied:1");
  EXPECT_EQ(Send(worker.Usable(std::span(chain_).subspan(3, 1), false)), "applied:2");
  EXPECT_EQ(boundaries.Longest(chain_), 3u);

  // A gap: until the snapshot is whole only removals are taken.
  worker.Lose();
  EXPECT_EQ(Send(worker.Usable(std::span(chain_).first(6), true)), "resync:2");
  EXPECT_EQ(boundaries.Longest(chain_), 3u);
  Send(worker.Usable(std::span(chain_).subspan(2, 1), false));
  EXPECT_EQ(boundaries.Longest(chain_), 2u);
  std::vector<v1::ReportRequest> pieces = worker.Snapshot();
  pieces[0].mutable_snapshot()->set_usable_keys(std::string(KeysToBytes(std::span(chain_).subspan(4, 1))));
  EXPECT_EQ(Send(pieces[0]), "applied:5");
  EXPECT_EQ(boundaries.Longest(chain_), 5u);
  EXPECT_EQ(boundaries.size(), 1u);
}

TEST_F(ReportSessionTest, MalformedBoundariesAreProtocolErrors) {
  ScriptedWorker worker("a");
  worker.info().set_boundaries(static_cast<v1::Boundaries>(9));
  Send(worker.Register());
  EXPECT_THAT(status_.ToString(), HasSubstr("register.boundaries: 9"));
  worker.info().set_boundaries(v1::BOUNDARIES_USABLE);
  GoLive(worker);
  v1::ReportRequest request = worker.Usable(chain_, true);
  request.mutable_events()->mutable_events(0)->mutable_usable()->set_keys("short");
  EXPECT_EQ(Send(request), "resync:4");
  std::vector<v1::ReportRequest> pieces = worker.Snapshot();
  pieces[0].mutable_snapshot()->set_usable_keys("short");
  EXPECT_EQ(Send(pieces[0]), "resync:4");
  EXPECT_EQ(registry_.Find("a")->boundaries.size(), 0u);
}

TEST_F(ReportSessionTest, MalformedRegistrationNamesTheField) {
  ScriptedWorker worker("a");
  worker.info().set_incarnation("short");
  EXPECT_EQ(Send(worker.Register()), "");
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("incarnation"));
}

TEST_F(ReportSessionTest, NewWorkerIsAskedForASnapshotThenItsEventsApply) {
  ScriptedWorker worker("a");
  GoLive(worker);
  EXPECT_EQ(registry_.Find("a")->state(), WorkerState::kReady);
  EXPECT_EQ(Send(worker.Stored(IndexSet::kMemory, root_, chain_)), "applied:1");
  EXPECT_EQ(Found(chain_), 6u);
  EXPECT_EQ(Send(worker.Truncated(IndexSet::kMemory, chain_[2])), "applied:2");
  EXPECT_EQ(Found(chain_), 2u);
  EXPECT_EQ(Send(worker.Digest(IndexSet::kMemory)), "applied:3");
  EXPECT_EQ(Send(worker.Cleared(IndexSet::kMemory)), "applied:4");
  EXPECT_EQ(Found(chain_), 0u);
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(counters_.resyncs(ResyncReason::kNewIncarnation).Value(), 1);
}

TEST_F(ReportSessionTest, RegistersWithTheLowerProtocolVersion) {
  ScriptedWorker worker("a");
  worker.info().set_protocol_version(9);
  std::vector<v1::ReportResponse> out;
  ASSERT_TRUE(session_->OnMessage(worker.Register(), out).ok());
  EXPECT_EQ(out[0].registered().protocol_version(), kProtocolVersion);
}

TEST_F(ReportSessionTest, GapAsksForASnapshotAndOnlyRemovalsApplyMeanwhile) {
  ScriptedWorker worker("a");
  GoLive(worker);
  Send(worker.Stored(IndexSet::kMemory, root_, std::span(chain_).first(4)));
  worker.Lose();
  EXPECT_EQ(Send(worker.Stored(IndexSet::kMemory, root_, chain_, 4)), "resync:2");
  EXPECT_EQ(Found(chain_), 4u);
  EXPECT_EQ(Send(worker.Truncated(IndexSet::kMemory, chain_[3])), "");
  EXPECT_EQ(Found(chain_), 3u);
  EXPECT_EQ(Send(worker.Stored(IndexSet::kMemory, root_, chain_, 3)), "");
  EXPECT_EQ(Found(chain_), 3u);
  std::string last;
  for (const auto& piece : worker.Snapshot(1)) {
    EXPECT_EQ(Found(chain_), 3u);  // not before the whole
    last = Send(piece);
  }
  EXPECT_EQ(last, "applied:5");
  EXPECT_EQ(Found(chain_), 6u);
  EXPECT_EQ(Send(worker.Digest(IndexSet::kMemory)), "applied:6");
}

TEST_F(ReportSessionTest, EventsThatWaitForASnapshotAreBoundedInBytes) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kMemory, root_, chain_);
  EXPECT_EQ(Send(worker.Register()), "registered,resync:1");
  const auto pieces = worker.Snapshot(1);
  ASSERT_GT(pieces.size(), 1u);
  EXPECT_EQ(Send(pieces[0]), "");
  const auto large = [&worker] {
    v1::ReportRequest request;
    worker.NextEvent(request).mutable_stored()->set_keys(std::string(16 << 20, 'k'));
    return request;
  };
  EXPECT_EQ(Send(large()), "");
  EXPECT_EQ(Send(large()), "resync:2");  // 32 MiB and a little
  // What was held is gone, and its bytes do not count any more.
  EXPECT_EQ(Send(pieces[0]), "");
  EXPECT_EQ(Send(large()), "");
}

TEST_F(ReportSessionTest, RepeatedEventsAreSkipped) {
  ScriptedWorker worker("a");
  GoLive(worker);
  const v1::ReportRequest stored = worker.Stored(IndexSet::kMemory, root_, chain_);
  EXPECT_EQ(Send(stored), "applied:1");
  Send(worker.Cleared(IndexSet::kMemory));
  EXPECT_EQ(Send(stored), "");
  EXPECT_EQ(Found(chain_), 0u);
  EXPECT_EQ(counters_.events_repeated.Value(), 1);
}

TEST_F(ReportSessionTest, DigestMismatchAsksForASnapshot) {
  ScriptedWorker worker("a");
  GoLive(worker);
  Send(worker.Stored(IndexSet::kMemory, root_, chain_));
  worker.set(IndexSet::kMemory).Truncate(chain_[5]);  // without a word
  EXPECT_EQ(Send(worker.Digest(IndexSet::kMemory)), "resync:3");
  std::string last;
  for (const auto& piece : worker.Snapshot()) last = Send(piece);
  EXPECT_EQ(last, "applied:2");
  EXPECT_EQ(Found(chain_), 5u);
}

TEST_F(ReportSessionTest, UnknownKindsAndSetsAreSkippedInSequence) {
  ScriptedWorker worker("a");
  GoLive(worker);
  v1::ReportRequest unknown;
  worker.NextEvent(unknown);  // no kind that this version knows
  EXPECT_EQ(Send(unknown), "applied:1");
  v1::ReportRequest later_set;
  worker.NextEvent(later_set).mutable_cleared()->set_set(static_cast<v1::BlockSet>(9));
  EXPECT_EQ(Send(later_set), "applied:2");
  EXPECT_EQ(Send(v1::ReportRequest()), "");
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(counters_.events_unknown.Value(), 3);
  EXPECT_EQ(Send(worker.Stored(IndexSet::kDevice, root_, chain_)), "applied:3");
}

TEST_F(ReportSessionTest, ProtocolErrorIsRefusedResyncedThenQuarantined) {
  ScriptedWorker good("good", 1);
  GoLive(good);
  Send(good.Stored(IndexSet::kMemory, root_, chain_));
  Open();
  ScriptedWorker bad("bad", 2);
  GoLive(bad);
  Send(bad.Stored(IndexSet::kDisk, root_, chain_));
  const std::vector<BlockKey> wrong = {chain_[0], chain_[4]};  // known under another parent
  for (int error = 1; error < kQuarantineAfter; ++error) {
    const ScriptedWorker honest = bad;
    EXPECT_EQ(Send(bad.Stored(IndexSet::kMemory, root_, wrong)), "resync:4");
    EXPECT_TRUE(status_.ok());
    EXPECT_EQ(Lookup(root_, chain_).size(), 2u);
    bad = honest;
    for (const auto& piece : bad.Snapshot()) Send(piece);
  }
  EXPECT_EQ(Send(bad.Stored(IndexSet::kMemory, root_, wrong)), "");
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Lookup(root_, chain_).size(), 1u);  // nothing of it is found
  EXPECT_EQ(counters_.quarantines.Value(), 1);
  EXPECT_EQ(counters_.protocol_errors.Value(), kQuarantineAfter);
  Open();
  EXPECT_EQ(Send(bad.Register()), "");
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
  // A restart is another chance.
  Open();
  ScriptedWorker restarted("bad", 3);
  GoLive(restarted);
}

TEST_F(ReportSessionTest, MalformedEventsAreProtocolErrors) {
  ScriptedWorker worker("a");
  GoLive(worker);
  v1::ReportRequest request = worker.Stored(IndexSet::kDevice, root_, chain_);
  request.mutable_events()->mutable_events(0)->mutable_stored()->set_keys("seventeen bytes!!");
  EXPECT_EQ(Send(request), "resync:4");
  worker.set(IndexSet::kDevice).Clear();
  for (const auto& piece : worker.Snapshot()) Send(piece);
  v1::ReportRequest unspecified;
  worker.NextEvent(unspecified).mutable_cleared();
  EXPECT_EQ(Send(unspecified), "resync:4");
}

TEST_F(ReportSessionTest, SnapshotThatContradictsItselfIsRefused) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kMemory, root_, chain_);
  EXPECT_EQ(Send(worker.Register()), "registered,resync:1");
  std::vector<v1::ReportRequest> pieces = worker.Snapshot();
  pieces.back().mutable_snapshot()->mutable_digests(1)->set_count(99);
  std::string last;
  for (const auto& piece : pieces) last = Send(piece);
  EXPECT_EQ(last, "resync:3");
  EXPECT_EQ(Found(chain_), 0u);
  EXPECT_EQ(index_.Stats().copies, 0u);
  // Pieces of the one that was given up are ignored.
  EXPECT_EQ(Send(pieces[1]), "");
  EXPECT_EQ(counters_.pieces_ignored.Value(), 1);
  for (const auto& piece : worker.Snapshot()) last = Send(piece);
  EXPECT_EQ(last, "applied:1");
  EXPECT_EQ(Found(chain_), 6u);
}

TEST_F(ReportSessionTest, SetWithoutADigestMustBeEmpty) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kMemory, root_, chain_);
  Send(worker.Register());
  std::vector<v1::ReportRequest> pieces = worker.Snapshot(100);
  ASSERT_EQ(pieces.size(), 1u);
  pieces[0].mutable_snapshot()->clear_digests();
  EXPECT_EQ(Send(pieces[0]), "resync:3");
}

TEST_F(ReportSessionTest, EventsBetweenPiecesApplyAfterTheSnapshot) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kMemory, root_, std::span(chain_).first(3));
  Send(worker.Register());
  const std::vector<v1::ReportRequest> pieces = worker.Snapshot(1);
  ASSERT_EQ(pieces.size(), 3u);
  Send(pieces[0]);
  EXPECT_EQ(Send(worker.Stored(IndexSet::kMemory, root_, chain_, 3)), "");
  Send(pieces[1]);
  EXPECT_EQ(Send(worker.Truncated(IndexSet::kMemory, chain_[4])), "");
  EXPECT_EQ(Send(pieces[2]), "applied:3");
  EXPECT_EQ(Found(chain_), 4u);
  EXPECT_EQ(Send(worker.Digest(IndexSet::kMemory)), "applied:4");
}

TEST_F(ReportSessionTest, NewIncarnationGoesDarkAtOnceAndTheOldStreamEnds) {
  ScriptedWorker worker("a", 1);
  GoLive(worker);
  Send(worker.Stored(IndexSet::kMemory, root_, chain_));
  ASSERT_EQ(Found(chain_), 6u);
  const std::unique_ptr<ReportSession> old = std::move(session_);
  Open();
  ScriptedWorker restarted("a", 2);
  EXPECT_EQ(Send(restarted.Register()), "registered,resync:1");
  EXPECT_EQ(Found(chain_), 0u);
  std::vector<v1::ReportResponse> out;
  EXPECT_EQ(old->OnMessage(worker.Digest(IndexSet::kMemory), out).code(), absl::StatusCode::kAborted);
}

TEST_F(ReportSessionTest, SameIncarnationGoesOnWhereItWas) {
  ScriptedWorker worker("a");
  GoLive(worker);
  Send(worker.Stored(IndexSet::kMemory, root_, std::span(chain_).first(3)));
  const std::unique_ptr<ReportSession> old = std::move(session_);
  Open();
  EXPECT_EQ(Send(worker.Register()), "registered,applied:1");
  EXPECT_EQ(Send(worker.Stored(IndexSet::kMemory, root_, chain_, 3)), "applied:2");
  EXPECT_EQ(Found(chain_), 6u);
  // The stream that was there before may not report any more.
  std::vector<v1::ReportResponse> out;
  EXPECT_EQ(old->OnMessage(worker.Digest(IndexSet::kMemory), out).code(), absl::StatusCode::kAborted);
}

TEST_F(ReportSessionTest, ReconnectDuringASnapshotStartsOver) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kMemory, root_, chain_);
  Send(worker.Register());
  const auto pieces = worker.Snapshot(2);
  Send(pieces[0]);
  Open();
  EXPECT_EQ(Send(worker.Register()), "registered,resync:1");
  EXPECT_EQ(Send(pieces[1]), "");
  std::string last;
  for (const auto& piece : pieces) last = Send(piece);
  EXPECT_EQ(last, "applied:1");
  EXPECT_EQ(Found(chain_), 6u);
}

TEST_F(ReportSessionTest, LostWorkerMustRegisterAgain) {
  ScriptedWorker worker("a");
  GoLive(worker);
  Send(worker.Stored(IndexSet::kMemory, root_, chain_));
  clock_.AdvanceTo(clock_.Now() + absl::Seconds(10));
  registry_.ExpireLost();
  EXPECT_EQ(Found(chain_), 0u);
  EXPECT_EQ(Send(worker.Digest(IndexSet::kMemory)), "");
  EXPECT_EQ(status_.code(), absl::StatusCode::kAborted);
  // On the same stream or a new one.
  EXPECT_EQ(Send(worker.Register()), "registered,resync:1");
  for (const auto& piece : worker.Snapshot()) Send(piece);
  EXPECT_EQ(Found(chain_), 6u);
}

TEST_F(ReportSessionTest, IndexAtItsBudgetIsNotTakenForADivergedOne) {
  LiteralPrefixIndex small({.max_bytes = 3 * BlockTree::kNodeBytes, .max_workers = 4});
  WorkerRegistry registry(RegistryOptions{}, small, clock_, nullptr);
  const ReportContext context{registry, small, commands_, counters_, Incarnation{}};
  ReportSession session(context, [](v1::ReportResponse) { return true; });
  ScriptedWorker worker("a");
  std::vector<v1::ReportResponse> out;
  const auto send = [&](const v1::ReportRequest& request) {
    out.clear();
    EXPECT_TRUE(session.OnMessage(request, out).ok());
    return Kinds(out);
  };
  worker.Stored(IndexSet::kMemory, root_, chain_);
  EXPECT_EQ(send(worker.Register()), "registered,resync:1");
  std::string last;
  for (const auto& piece : worker.Snapshot()) last = send(piece);
  EXPECT_EQ(last, "applied:1");
  EXPECT_GT(small.Stats().shed_blocks, 0u);
  EXPECT_EQ(send(worker.Digest(IndexSet::kMemory)), "applied:2");
  EXPECT_EQ(send(worker.Truncated(IndexSet::kMemory, chain_[5])), "applied:3");
  EXPECT_EQ(send(worker.Digest(IndexSet::kMemory)), "applied:4");
}

}  // namespace
}  // namespace kvmesh
