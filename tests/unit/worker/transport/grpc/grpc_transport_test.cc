#include "worker/transport/grpc/grpc_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "tests/unit/worker/transport/grpc/transport_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

TEST_F(GrpcTransportTest, BringsTheChainByteForByte) {
  FetchListener listener(Forward(sender_));
  MakeTransport();
  EXPECT_EQ(transport_->name(), "grpc");
  EXPECT_TRUE(transport_->RegisterMemory(sender_.device->view()).ok());
  const TransferProgress progress = Transfer(Request(listener.address()));
  EXPECT_TRUE(progress.result.ok()) << progress.result;
  ExpectArrived(progress, kBlocks);
  EXPECT_EQ(transport_->transfers(), 0u);
  EXPECT_EQ(sender_.server.counters().serves_in_flight, 0u);
}

TEST_F(GrpcTransportTest, FewerTargetsBringTheLeadingBlocks) {
  FetchListener listener(Forward(sender_));
  MakeTransport();
  TransferRequest request = Request(listener.address());
  request.targets.resize(5);
  const TransferProgress progress = Transfer(request);
  EXPECT_TRUE(progress.result.ok()) << progress.result;
  ExpectArrived(progress, 5);
}

TEST_F(GrpcTransportTest, ArrivedBlocksAreReportedAsTheyCome) {
  const std::vector<v1::BlockPiece> pieces = Pieces();
  Gate gate;
  gate.Close();
  FetchListener listener([&](grpc::ServerContext&, const v1::FetchBlocksRequest&, const PieceWriter& write) {
    size_t blocks = 0;
    for (const v1::BlockPiece& piece : pieces) {
      EXPECT_TRUE(write(Encoded(piece)));
      if (piece.last() && ++blocks == 5) gate.Pass();
    }
    return absl::OkStatus();
  });
  MakeTransport();
  const TransferId id = *transport_->Prepare(Request(listener.address()));
  transport_->Post(id);
  std::vector<BlockHeader> arrived;
  while (arrived.size() < 5) {
    const TransferProgress progress = transport_->WaitForProgress(id, arrived.size(), kTestPatience);
    ASSERT_FALSE(progress.finished) << progress.result;
    ASSERT_FALSE(progress.arrived.empty());
    arrived.insert(arrived.end(), progress.arrived.begin(), progress.arrived.end());
  }
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(VerifyBlock(arrived[i], targets_.block(i)).ok());
  EXPECT_TRUE(transport_->WaitForProgress(id, 5, absl::Milliseconds(1)).arrived.empty());
  gate.Open();
  const TransferProgress progress = Finish(id);
  EXPECT_TRUE(progress.result.ok());
  ExpectArrived(progress, kBlocks);
}

TEST_F(GrpcTransportTest, LargeBlocksArrive) {
  GrpcTestWorker large({.layout = TestLayout(60'000), .device_slots = 4});
  const std::vector<BlockKey> keys = TestChain(root_, 1, 4);
  large.Seal(root_, keys);
  FetchListener listener(Forward(large));
  MakeTransport();
  Targets targets(keys.size(), large.block_bytes());
  TransferRequest request = Request(listener.address());
  request.ticket = SealTicket(TestTicket(root_, keys), kTestTicketKey);
  request.layout = large.store->layout_fingerprint();
  request.targets = targets.spans();
  const TransferProgress progress = Transfer(request);
  EXPECT_TRUE(progress.result.ok()) << progress.result;
  ASSERT_EQ(progress.arrived.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(HoldsBlock(keys[i], targets.block(i)));
}

TEST_F(GrpcTransportTest, RefusedTicketsHaveTheirOwnResults) {
  FetchListener listener(Forward(sender_));
  MakeTransport();
  const auto result_of = [&](const Ticket& ticket, const TicketKey& key = kTestTicketKey) {
    TransferRequest request = Request(listener.address());
    request.ticket = SealTicket(ticket, key);
    const TransferProgress progress = Transfer(request);
    EXPECT_TRUE(progress.arrived.empty());
    return progress.result;
  };
  targets_.Fill(kCanary);
  EXPECT_TRUE(absl::IsPermissionDenied(result_of(TestTicket(root_, keys_), DeriveTicketKey("another"))));
  Ticket ticket = TestTicket(root_, keys_);
  ticket.receiver = "another";
  EXPECT_TRUE(absl::IsPermissionDenied(result_of(ticket)));
  ticket = TestTicket(root_, keys_);
  ticket.receiver_incarnation = TestIncarnation(3);
  EXPECT_TRUE(absl::IsPermissionDenied(result_of(ticket)));
  ticket = TestTicket(root_, keys_);
  ticket.sender_incarnation = TestIncarnation(3);
  EXPECT_TRUE(absl::IsPermissionDenied(result_of(ticket)));
  ticket = TestTicket(root_, keys_);
  ticket.expiry = absl::Now() - absl::Seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(result_of(ticket)));
  EXPECT_TRUE(absl::IsNotFound(result_of(TestTicket(root_, TestChain(root_, 7, kBlocks)))));
  TransferRequest malformed = Request(listener.address());
  malformed.ticket = "nonsense";
  EXPECT_TRUE(absl::IsPermissionDenied(Transfer(malformed).result));
  EXPECT_TRUE(targets_.AllEqual(kCanary));

  TransferRequest request = Request(listener.address());
  EXPECT_TRUE(Transfer(request).result.ok());
  request.deadline = absl::Now() + kTestPatience;
  EXPECT_TRUE(absl::IsPermissionDenied(Transfer(request).result)) << "served twice";
}

TEST_F(GrpcTransportTest, OtherStatusesMeanThePeerIsUnavailable) {
  MakeTransport();
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable, absl::StatusCode::kInternal,
        absl::StatusCode::kCancelled, absl::StatusCode::kUnimplemented, absl::StatusCode::kUnknown}) {
    FetchListener listener(Replay({}, absl::Status(code, "no")));
    EXPECT_TRUE(absl::IsUnavailable(Transfer(Request(listener.address())).result)) << static_cast<int>(code);
  }
  FetchListener listener(Replay({}, absl::DataLossError("corrupt at the sender")));
  EXPECT_TRUE(absl::IsDataLoss(Transfer(Request(listener.address())).result));
}

TEST_F(GrpcTransportTest, ErrorAfterSomeBlocksKeepsThem) {
  std::vector<v1::BlockPiece> pieces = Pieces();
  const size_t per_block = pieces.size() / kBlocks;
  pieces.resize(3 * per_block + 1);
  FetchListener listener(Replay(pieces, absl::UnavailableError("enough")));
  MakeTransport();
  const TransferProgress progress = Transfer(Request(listener.address()));
  EXPECT_TRUE(absl::IsUnavailable(progress.result));
  ExpectArrived(progress, 3);
}

TEST_F(GrpcTransportTest, MalformedStreamsAreDataLoss) {
  struct Case {
    const char* name;
    std::function<void(std::vector<v1::BlockPiece>&)> damage;
    size_t arrived;
  };
  const size_t per_block = Pieces().size() / kBlocks;
  const Case cases[] = {
      {"empty", [](auto& p) { p.clear(); }, 0},
      {"short", [](auto& p) { p.pop_back(); }, kBlocks - 1},
      {"a block short", [&](auto& p) { p.resize(p.size() - per_block); }, kBlocks - 1},
      {"too long", [](auto& p) { p.push_back(p[0]); }, kBlocks},
      {"missing header", [&](auto& p) { p[per_block].clear_header(); }, 1},
      {"wrong magic", [&](auto& p) { p[2 * per_block].mutable_header()->at(0) ^= 1; }, 2},
      {"payload overflow", [&](auto& p) { p[per_block - 1].mutable_payload()->append("x"); }, 0},
      {"wrong order", [&](auto& p) { std::rotate(p.begin(), p.begin() + static_cast<ptrdiff_t>(per_block), p.end()); },
       kBlocks - 1},
  };
  MakeTransport();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    std::vector<v1::BlockPiece> pieces = Pieces();
    c.damage(pieces);
    FetchListener listener(Replay(pieces));
    const TransferProgress progress = Transfer(Request(listener.address()));
    EXPECT_TRUE(absl::IsDataLoss(progress.result)) << progress.result;
    EXPECT_EQ(progress.arrived.size(), c.arrived);
  }
}

TEST_F(GrpcTransportTest, FlippedPayloadArrivesAsItIsAndFailsVerification) {
  std::vector<v1::BlockPiece> pieces = Pieces();
  pieces[1].mutable_payload()->at(7) ^= 1;
  FetchListener listener(Replay(pieces));
  MakeTransport();
  const TransferProgress progress = Transfer(Request(listener.address()));
  EXPECT_TRUE(progress.result.ok());
  ASSERT_EQ(progress.arrived.size(), kBlocks);
  EXPECT_TRUE(absl::IsDataLoss(VerifyBlock(progress.arrived[0], targets_.block(0))));
  EXPECT_TRUE(VerifyBlock(progress.arrived[1], targets_.block(1)).ok());
}

TEST_F(GrpcTransportTest, BoundsTransfersAndChannels) {
  FetchListener first(Forward(sender_));
  FetchListener second(Forward(sender_));
  MakeTransport({.max_transfers = 2, .max_channels = 1});
  const TransferId a = *transport_->Prepare(Request(first.address()));
  const TransferId b = *transport_->Prepare(Request(second.address()));
  const absl::Status full = transport_->Prepare(Request(first.address())).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("transfers"));
  transport_->Post(a);
  EXPECT_TRUE(Finish(a).result.ok());
  transport_->Post(b);
  EXPECT_TRUE(Finish(b).result.ok());
  EXPECT_EQ(transport_->channels(), 1u);
  EXPECT_TRUE(transport_->Prepare(Request(first.address())).ok());
}

TEST_F(GrpcTransportTest, RequestsThatCannotRunAreRefused) {
  MakeTransport();
  TransferRequest request = Request("127.0.0.1:1");
  request.targets.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(transport_->Prepare(request).status()));
  request = Request("127.0.0.1:1");
  request.targets[1] = {};
  EXPECT_TRUE(absl::IsInvalidArgument(transport_->Prepare(request).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(transport_->Prepare(Request("")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(transport_->Prepare(Request("127.0.0.1:1", absl::InfiniteDuration())).status()));
  EXPECT_EQ(transport_->transfers(), 0u);
}

TEST_F(GrpcTransportTest, CallWithoutADeadlineIsRefusedByTheSender) {
  FetchListener listener(Forward(sender_));
  const auto stub = v1::Worker::NewStub(TestChannel(listener.address()));
  grpc::ClientContext context;
  const auto reader = stub->FetchBlocks(
      &context, TestRequest(SealTicket(TestTicket(root_, keys_), kTestTicketKey), sender_.store->layout_fingerprint()));
  v1::BlockPiece piece;
  EXPECT_FALSE(reader->Read(&piece));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("deadline"));
}

// Two workers, each with its own chain, pull from each other at the same time.
TEST_F(GrpcTransportTest, TwoWorkersPullFromEachOther) {
  GrpcTestWorker other({.id = "other", .incarnation = 4}, 300);
  const std::vector<BlockKey> other_keys = TestChain(root_, 5, kBlocks);
  other.Seal(root_, other_keys);
  FetchListener sender_listener(Forward(sender_));
  FetchListener other_listener(Forward(other));

  const auto pull = [&](const TestWorker& from, const std::string& address, const TestWorker& to,
                        const std::vector<BlockKey>& keys) {
    GrpcTransport transport(
        {.make_channel = TestChannel, .receiver_id = to.id, .receiver_incarnation = to.incarnation});
    for (int round = 0; round < 20; ++round) {
      std::vector<PrivateBlock> blocks;
      TransferRequest request = Request(address);
      request.targets.clear();
      for (size_t i = 0; i < keys.size(); ++i) {
        auto block = to.store->Allocate();
        ASSERT_TRUE(block.ok()) << block.status();
        request.targets.push_back(to.device->bytes(block->block()));
        blocks.push_back(*std::move(block));
      }
      Ticket ticket = TestTicket(root_, keys);
      ticket.sender = from.id;
      ticket.sender_incarnation = from.incarnation;
      ticket.receiver = to.id;
      ticket.receiver_incarnation = to.incarnation;
      request.ticket = SealTicket(ticket, kTestTicketKey);
      const TransferId id = *transport.Prepare(request);
      transport.Post(id);
      while (!transport.WaitForProgress(id, SIZE_MAX, kTestPatience).quiescent) continue;
      const TransferProgress progress = transport.Poll(id, 0);
      ASSERT_TRUE(progress.result.ok()) << progress.result;
      ASSERT_EQ(progress.arrived.size(), keys.size());
      std::vector<BlockPin> pins;
      for (size_t i = 0; i < keys.size(); ++i) {
        auto pin = to.store->Publish(std::move(blocks[i]), progress.arrived[i]);
        ASSERT_TRUE(pin.ok()) << pin.status();
        pins.push_back(*std::move(pin));
      }
      transport.Release(id);
    }
  };
  std::thread one([&] { pull(other, other_listener.address(), sender_, other_keys); });
  pull(sender_, sender_listener.address(), other, keys_);
  one.join();
  EXPECT_EQ(sender_.store->Lookup(other_keys, {}).blocks[0], kBlocks);
  EXPECT_EQ(other.store->Lookup(keys_, {}).blocks[0], kBlocks);
}

}  // namespace
}  // namespace kvmesh
