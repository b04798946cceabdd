// Transfers that are cancelled, and peers that die or fall silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <thread>

#include "tests/support/await.h"
#include "tests/support/gate.h"
#include "tests/unit/worker/transport/grpc/transport_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

TEST_F(GrpcTransportTest, CancelBeforePostIsQuiescentAtOnce) {
  FetchListener listener(Forward(sender_));
  MakeTransport();
  targets_.Fill(kCanary);
  const TransferId id = *transport_->Prepare(Request(listener.address()));
  EXPECT_FALSE(transport_->Poll(id, 0).finished);
  transport_->Cancel(id);
  const TransferProgress progress = transport_->Poll(id, 0);
  EXPECT_TRUE(absl::IsCancelled(progress.result));
  EXPECT_TRUE(progress.quiescent);
  transport_->Post(id);
  transport_->Release(id);
  EXPECT_TRUE(targets_.AllEqual(kCanary));
}

TEST_F(GrpcTransportTest, NothingIsWrittenAfterACancelledTransferIsQuiescent) {
  FetchListener listener(Forward(sender_));
  MakeTransport();
  // Cancel when some number of blocks is there, from none to all.
  for (size_t stage = 0; stage <= kBlocks; ++stage) {
    const TransferId id = *transport_->Prepare(Request(listener.address()));
    transport_->Post(id);
    for (size_t seen = 0; seen < stage;) {
      const TransferProgress progress = transport_->WaitForProgress(id, seen, kTestPatience);
      seen += progress.arrived.size();
    }
    transport_->Cancel(id);
    const TransferProgress cancelled = transport_->Poll(id, 0);
    EXPECT_TRUE(cancelled.finished);
    EXPECT_TRUE(absl::IsCancelled(cancelled.result) || cancelled.arrived.size() == kBlocks);
    AwaitQuiescence(id);
    const TransferProgress quiescent = transport_->Poll(id, 0);
    EXPECT_EQ(quiescent.result, cancelled.result);
    EXPECT_EQ(quiescent.arrived.size(), cancelled.arrived.size());
    targets_.Fill(kCanary);
    transport_->Release(id);
    // Whatever might still be on its way has landed when the next transfer to other targets is through.
    Targets others(kBlocks, sender_.block_bytes());
    TransferRequest next = Request(listener.address());
    next.targets = others.spans();
    EXPECT_TRUE(Transfer(next).result.ok());
    EXPECT_TRUE(targets_.AllEqual(kCanary)) << "stage " << stage;
  }
}

TEST_F(GrpcTransportTest, CancelAtRandomMomentsEndsInExactlyOneResult) {
  FetchListener listener(Forward(sender_));
  MakeTransport();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    const TransferId id = *transport_->Prepare(Request(listener.address()));
    const auto moment = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 3000);
    std::thread canceller([&] {
      while (std::chrono::steady_clock::now() < moment) continue;
      transport_->Cancel(id);
    });
    transport_->Post(id);
    canceller.join();
    const TransferProgress progress = Finish(id);
    EXPECT_TRUE(progress.result.ok() || absl::IsCancelled(progress.result)) << progress.result;
    if (progress.result.ok()) ExpectArrived(progress, kBlocks);
  }
}

TEST_F(GrpcTransportTest, DestructorCancelsAndWaits) {
  Gate gate;
  FetchListener listener([&](grpc::ServerContext& context, const auto&, auto&) {
    gate.Pass();
    AwaitCancelled(context);
    return absl::OkStatus();
  });
  MakeTransport();
  const TransferId running = *transport_->Prepare(Request(listener.address()));
  transport_->Post(running);
  EXPECT_TRUE(transport_->Prepare(Request(listener.address())).ok());
  ASSERT_TRUE(Await(kTestPatience, [&] { return gate.arrivals() > 0; }));
  transport_.reset();
  targets_.Fill(kCanary);
  EXPECT_TRUE(targets_.AllEqual(kCanary));
}

TEST_F(GrpcTransportTest, PeerThatDiesMidStreamIsUnavailableAndItsSuccessorServes) {
  const std::vector<v1::BlockPiece> pieces = Pieces();
  const size_t per_block = pieces.size() / kBlocks;
  MakeTransport();
  std::optional<FetchListener> listener;
  listener.emplace([&](grpc::ServerContext& context, const v1::FetchBlocksRequest&, const PieceWriter& write) {
    for (size_t i = 0; i < 2 * per_block; ++i) EXPECT_TRUE(write(Encoded(pieces[i])));
    AwaitCancelled(context);
    return absl::OkStatus();
  });
  const int port = listener->port();
  const std::string address = listener->address();
  const TransferId id = *transport_->Prepare(Request(address));
  transport_->Post(id);
  for (size_t seen = 0; seen < 2;) seen += transport_->WaitForProgress(id, seen, kTestPatience).arrived.size();
  listener->Kill();
  const TransferProgress progress = Finish(id);
  EXPECT_TRUE(absl::IsUnavailable(progress.result)) << progress.result;
  ExpectArrived(progress, 2);

  listener.reset();
  EXPECT_TRUE(absl::IsUnavailable(Transfer(Request(address)).result));
  listener.emplace(Forward(sender_), port);
  EXPECT_TRUE(Transfer(Request(address)).result.ok());
}

TEST_F(GrpcTransportTest, SilentPeerEndsTheTransferAtItsDeadline) {
  FetchListener listener([](grpc::ServerContext& context, const auto&, auto&) {
    AwaitCancelled(context);
    return absl::OkStatus();
  });
  MakeTransport();
  const absl::Time begin = absl::Now();
  const TransferProgress progress = Transfer(Request(listener.address(), absl::Milliseconds(300)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(progress.result)) << progress.result;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4));
}

TEST_F(GrpcTransportTest, SilentPeerEndsTheTransferAtTheStallTimeout) {
  const std::vector<v1::BlockPiece> pieces = Pieces();
  const size_t per_block = pieces.size() / kBlocks;
  FetchListener listener([&](grpc::ServerContext& context, const v1::FetchBlocksRequest&, const PieceWriter& write) {
    for (size_t i = 0; i < per_block; ++i) EXPECT_TRUE(write(Encoded(pieces[i])));
    AwaitCancelled(context);
    return absl::OkStatus();
  });
  MakeTransport({.timeouts = {.stall = absl::Milliseconds(300)}});
  const TransferProgress progress = Transfer(Request(listener.address()));
  EXPECT_TRUE(absl::IsUnavailable(progress.result)) << progress.result;
  EXPECT_THAT(std::string(progress.result.message()), HasSubstr("sent nothing for 300ms"));
  ExpectArrived(progress, 1);
}

TEST_F(GrpcTransportTest, PeerThatNeverSpeaksEndsTheTransferAtTheConnectTimeout) {
  // The kernel completes the connection; nobody ever reads from it, as with a stopped process.
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(socket, 8), 0);
  ASSERT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  MakeTransport({.timeouts = {.connect = absl::Milliseconds(200)}});
  const TransferProgress progress = Transfer(Request(absl::StrCat("127.0.0.1:", ntohs(address.sin_port))));
  EXPECT_TRUE(absl::IsUnavailable(progress.result)) << progress.result;
  EXPECT_THAT(std::string(progress.result.message()), HasSubstr("not connected after 200ms"));
  EXPECT_EQ(transport_->channels(), 0u);
  close(socket);
}

}  // namespace
}  // namespace kvmesh
