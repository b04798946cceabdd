// A coordinator of one test: applies reports to a literal model and does to the stream what the test asks for.
#ifndef KVMESH_TESTS_UNIT_WORKER_REPORT_FAKE_COORDINATOR_H_
#define KVMESH_TESTS_UNIT_WORKER_REPORT_FAKE_COORDINATOR_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvstore/base/mutex.h"
#include "tests/support/gate.h"
#include "tests/support/set_replay.h"

namespace kvmesh {

// What a coordinator believes of one worker. Fails the test on anything but contiguous events, snapshots in order and
// equal digests. Not thread safe.
class ReportModel {
 public:
  bool live() const { return live_; }
  uint64_t applied() const { return applied_; }
  const SetReplay& sets() const { return sets_; }

  void Forget() { live_ = false; }

  // False: a gap; only a snapshot helps now.
  bool OnEvent(const v1::Event& event) {
    if (!live_ || event.sequence() <= applied_) return true;
    if (event.sequence() != applied_ + 1) return live_ = false;
    applied_ = event.sequence();
    if (event.has_stored()) OnStored(event.stored(), sets_);
    if (event.has_truncated()) sets_.Truncated(Set(event.truncated().set()), Key(event.truncated().key()));
    if (event.has_digest()) ExpectDigest(event.digest(), sets_);
    return true;
  }

  void OnPiece(const v1::SnapshotPiece& piece) {
    if (piece.first()) {
      hidden_.emplace();
      live_ = false;
      snapshot_sequence_ = piece.sequence();
    }
    ASSERT_TRUE(hidden_) << "a piece before the first";
    EXPECT_EQ(piece.sequence(), snapshot_sequence_);
    for (const v1::StoredEvent& run : piece.runs()) OnStored(run, *hidden_);
    if (!piece.last()) {
      EXPECT_EQ(piece.digests_size(), 0);
      return;
    }
    EXPECT_EQ(piece.digests_size(), 3);
    for (const v1::DigestEvent& digest : piece.digests()) ExpectDigest(digest, *hidden_);
    sets_ = *std::exchange(hidden_, std::nullopt);
    applied_ = snapshot_sequence_;
    live_ = true;
  }

 private:
  static BlockSetKind Set(v1::BlockSet set) {
    EXPECT_NE(set, v1::BLOCK_SET_UNSPECIFIED);
    return static_cast<BlockSetKind>(set - v1::BLOCK_SET_DEVICE);
  }
  static BlockKey Key(const std::string& bytes) {
    EXPECT_EQ(bytes.size(), BlockKey::kSize);
    return BlockKey::FromBytes(bytes).value_or(BlockKey{});
  }
  static void OnStored(const v1::StoredEvent& event, SetReplay& sets) {
    EXPECT_EQ(event.root().size(), RootKey::kSize);
    const RootKey root{Key(event.root()).bytes};
    BlockKey parent = Key(event.parent());
    EXPECT_EQ(event.first_block() == 0, parent == RootAsParent(root));
    EXPECT_FALSE(event.keys().empty());
    for (size_t i = 0; i < event.keys().size(); i += BlockKey::kSize) {
      const BlockKey key = Key(event.keys().substr(i, BlockKey::kSize));
      sets.Stored(Set(event.set()), root, parent, key, LossyFormats(event.lossy_formats()));
      parent = key;
    }
  }
  static void ExpectDigest(const v1::DigestEvent& digest, const SetReplay& sets) {
    const SetDigest own = sets.Digest(Set(digest.set()));
    EXPECT_EQ(digest.sum(), own.SumBytes());
    EXPECT_EQ(digest.count(), own.count());
  }

  bool live_ = false;
  uint64_t applied_ = 0;
  SetReplay sets_;
  std::optional<SetReplay> hidden_;  // a snapshot that is arriving
  uint64_t snapshot_sequence_ = 0;
};

// Serves Report and Heartbeat; all else is UNIMPLEMENTED. Thread safe.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  FakeCoordinator() { Start(0); }
  ~FakeCoordinator() override { Stop(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // The process goes away, and comes back at the same address, with its memory or without.
  void Stop() {
    read_gate.Open();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void Restart(bool with_memory) {
    if (!with_memory) {
      MutexLock lock(mu_);
      model_ = ReportModel();
    }
    Start(port_);
  }

  // Cuts the current stream.
  void DropStream() {
    MutexLock lock(mu_);
    if (context_ != nullptr) context_->TryCancel();
  }
  // Does not see the event with this number.
  void LoseEvent(uint64_t sequence) {
    MutexLock lock(mu_);
    lose_ = sequence;
  }
  // Never answers a registration.
  void SetMute(bool mute) {
    MutexLock lock(mu_);
    mute_ = mute;
  }
  void Send(const v1::ReportResponse& response) {
    MutexLock lock(mu_);
    ASSERT_NE(stream_, nullptr);
    stream_->Write(response);
  }
  void SendCommand(const v1::Command& command) {
    v1::ReportResponse response;
    *response.mutable_command() = command;
    Send(response);
  }
  // What heartbeats are answered with.
  void SetHeartbeat(grpc::Status status, uint64_t interval_ms = 10) {
    MutexLock lock(mu_);
    heartbeat_status_ = std::move(status);
    heartbeat_interval_ms_ = interval_ms;
  }

  // Waits until the predicate holds of the state below. False: kTestPatience passed first.
  struct State {
    std::vector<v1::WorkerInfo> registrations;
    std::vector<v1::CommandResult> results;
    std::vector<v1::HeartbeatRequest> heartbeats;
    uint64_t pieces = 0;
    uint64_t snapshots = 0;  // complete ones
    uint64_t events = 0;
    uint64_t digests = 0;
    uint64_t largest_batch = 0;
    uint64_t applied = 0;
    bool live = false;
    bool connected = false;
  };
  bool Await(const std::function<bool(const State&)>& predicate) {
    const absl::Time deadline = absl::Now() + kTestPatience;
    MutexLock lock(mu_);
    while (!predicate(StateNow())) {
      if (absl::Now() >= deadline) return false;
      changed_.WaitFor(lock, deadline - absl::Now());
    }
    return true;
  }
  State state() {
    MutexLock lock(mu_);
    return StateNow();
  }
  ReportModel model() {
    MutexLock lock(mu_);
    return model_;
  }

  // Each read from the stream passes here first.
  Gate read_gate;

  grpc::Status Report(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::ReportResponse, v1::ReportRequest>* stream) override {
    v1::ReportRequest request;
    while (read_gate.Pass(), stream->Read(&request)) {
      MutexLock lock(mu_);
      switch (request.kind_case()) {
        case v1::ReportRequest::kRegister:
          OnRegister(request.register_(), context, stream);
          break;
        case v1::ReportRequest::kEvents:
          OnEvents(request.events(), *stream);
          break;
        case v1::ReportRequest::kSnapshot:
          ++state_.pieces;
          model_.OnPiece(request.snapshot());
          if (request.snapshot().last()) {
            ++state_.snapshots;
            Acknowledge(*stream);
          }
          break;
        case v1::ReportRequest::kCommandResult:
          state_.results.push_back(request.command_result());
          break;
        case v1::ReportRequest::KIND_NOT_SET:
          ADD_FAILURE() << "an empty message";
      }
      changed_.NotifyAll();
    }
    MutexLock lock(mu_);
    if (context_ == context) {
      context_ = nullptr;
      stream_ = nullptr;
    }
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    MutexLock lock(mu_);
    state_.heartbeats.push_back(*request);
    response->set_interval_ms(heartbeat_interval_ms_);
    changed_.NotifyAll();
    return heartbeat_status_;
  }

 private:
  using Stream = grpc::ServerReaderWriter<v1::ReportResponse, v1::ReportRequest>;

  void Start(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // A fixed window of 64 KiB, so that a stream soon blocks when its messages are not read.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  State StateNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    State state = state_;
    state.applied = model_.applied();
    state.live = model_.live();
    state.connected = stream_ != nullptr;
    return state;
  }
  void OnRegister(const v1::WorkerInfo& info, grpc::ServerContext* context, Stream* stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    state_.registrations.push_back(info);
    context_ = context;
    stream_ = stream;
    if (mute_) return;
    v1::ReportResponse registered;
    registered.mutable_registered()->set_protocol_version(1);
    stream->Write(registered);
    if (model_.live()) {
      Acknowledge(*stream);
    } else {
      Resync(*stream, v1::ResyncRequest::REASON_NEW_INCARNATION);
    }
  }
  void OnEvents(const v1::EventBatch& batch, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    state_.largest_batch = std::max<uint64_t>(state_.largest_batch, static_cast<uint64_t>(batch.events_size()));
    for (const v1::Event& event : batch.events()) {
      ++state_.events;
      if (event.has_digest()) ++state_.digests;
      if (event.sequence() == lose_) {
        lose_ = 0;
        continue;
      }
      if (!model_.OnEvent(event)) Resync(stream, v1::ResyncRequest::REASON_SEQUENCE_GAP);
    }
    if (model_.live()) Acknowledge(stream);
  }
  void Acknowledge(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::ReportResponse response;
    response.set_applied_sequence(model_.applied());
    stream.Write(response);
  }
  static void Resync(Stream& stream, v1::ResyncRequest::Reason reason) {
    v1::ReportResponse response;
    response.mutable_resync()->set_reason(reason);
    stream.Write(response);
  }

  Mutex mu_;
  CondVar changed_;
  ReportModel model_ ABSL_GUARDED_BY(mu_);
  State state_ ABSL_GUARDED_BY(mu_);
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  Stream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint64_t lose_ ABSL_GUARDED_BY(mu_) = 0;
  bool mute_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status heartbeat_status_ ABSL_GUARDED_BY(mu_);
  uint64_t heartbeat_interval_ms_ ABSL_GUARDED_BY(mu_) = 10;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_REPORT_FAKE_COORDINATOR_H_
