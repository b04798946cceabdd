// Pulling blocks from a peer over gRPC: MB/s of one transfer after another, against a bare gRPC byte stream whose
// pieces are as large.
//
//   transport  FetchServer (ticket, pins, checksum of each block) to GrpcTransport, into targets.
//   fetch      the same and what PeerFetcher adds: allocation, checksum and publication of each block on the receiver.
// Two streams, both of one piece again and again: raw buffers in the callback API, which nothing but gRPC copies, and
// protobuf messages in the synchronous API, which is what a plain service would use.
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/ticket.h"
#include "kvstore/service/grpc_status.h"
#include "tests/bench/bench_cluster.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/grpc_probes.h"
#include "worker/transport/grpc/block_stream_service.h"
#include "worker/transport/grpc/fetch_server.h"
#include "worker/transport/grpc/grpc_transport.h"

namespace kvmesh {
namespace {

constexpr double kBar = 0.7;
constexpr absl::Duration kPatience = absl::Seconds(20);

struct BlockSize {
  const char* name;
  BlockLayout layout;
  uint32_t blocks;  // of one transfer
};
const std::array<BlockSize, 2> kSizes = {{
    {"64 KiB", CanonicalLayout(KvFormat::kF32, 4, 2, kBenchBlockTokens, 64), 512},
    {"1 MiB", CanonicalLayout(KvFormat::kF32, 16, 8, kBenchBlockTokens, 64), 32},
}};

// Worker.FetchBlocks as the worker serves it.
class FetchService final : public BlockStreamService {
 public:
  explicit FetchService(FetchServer& server) : server_(server) {}
  grpc::Status StreamFetchBlocks(grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                 const PieceWriter& write) override {
    return ToGrpcStatus(server_.Serve(context, request, write));
  }

 private:
  FetchServer& server_;
};

std::unique_ptr<WorkerCore> MakeWorker(const std::string& id, const Incarnation& incarnation, const BlockSize& size,
                                       std::vector<std::unique_ptr<Transport>> transports) {
  WorkerOptions options = BenchWorkerOptions(id);
  options.layout = size.layout;
  options.device_blocks = 2 * size.blocks;
  options.max_pinned_fraction = 1;
  return Must(WorkerCore::Create(options, incarnation, std::move(transports)));
}

// A sender that holds one chain, a receiver, and the bare stream.
class FetchWorld {
 public:
  explicit FetchWorld(const BlockSize& size)
      : size_(size),
        root_(BenchRoot(BenchIdentity("fetch"))),
        keys_(ComputeBlockKeys(RootAsParent(root_), RandomTokens(1, size.blocks * kBenchBlockTokens, 32000),
                               kBenchBlockTokens)),
        sender_(MakeWorker("sender", sender_incarnation_, size, {})),
        block_server_({.stores = {&sender_->store()},
                       .worker_id = "sender",
                       .incarnation = sender_incarnation_,
                       .ticket_key = DeriveTicketKey(kBenchSecret)}),
        fetch_server_({.blocks = &block_server_}),
        fetch_service_(fetch_server_),
        fetch_listener_({&fetch_service_}),
        raw_service_(piece_bytes()),
        raw_listener_({&raw_service_}),
        raw_channel_(Channel(raw_listener_.address())),
        message_service_(piece_bytes()),
        message_listener_({&message_service_}),
        message_channel_(Channel(message_listener_.address())) {
    SealChain(sender_->store(), root_, keys_);
    auto transport = std::make_unique<GrpcTransport>(GrpcTransport::Options{
        .make_channel = Channel, .receiver_id = "receiver", .receiver_incarnation = receiver_incarnation_});
    transport_ = transport.get();
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::move(transport));
    receiver_ = MakeWorker("receiver", receiver_incarnation_, size, std::move(transports));
    targets_.resize(static_cast<size_t>(size.blocks) * block_bytes());
    std::memset(targets_.data(), 1, targets_.size());
  }

  // MB/s of one pass each.
  double TransportRate() {
    TransferRequest request;
    request.peer_id = "sender";
    request.peer_address = fetch_listener_.address();
    request.layout = receiver_->store().layout_fingerprint();
    for (size_t i = 0; i < size_.blocks; ++i) {
      request.targets.push_back(std::span(targets_).subspan(i * block_bytes(), block_bytes()));
    }
    const double start = SecondsNow();
    request.ticket = MintTicket();
    request.deadline = absl::Now() + kPatience;
    const TransferId transfer = Must(transport_->Prepare(std::move(request)));
    transport_->Post(transfer);
    size_t arrived = 0;
    TransferProgress progress;
    while (!progress.quiescent) {
      progress = transport_->WaitForProgress(transfer, arrived, kPatience);
      arrived += progress.arrived.size();
    }
    transport_->Release(transfer);
    const double seconds = SecondsNow() - start;
    Must(progress.result);
    return MegaBytes() / seconds;
  }
  double FetchRate() {
    PeerSource source = {.block_count = size_.blocks, .peer_id = "sender", .peer_address = fetch_listener_.address()};
    const double start = SecondsNow();
    source.ticket = MintTicket();
    PeerFetcher::Result result = receiver_->fetcher().Fetch(
        {.store = &receiver_->store(), .root = root_, .parent = RootAsParent(root_), .keys = keys_}, source,
        absl::Now() + kPatience);
    const double seconds = SecondsNow() - start;
    Must(result.status);
    result.pins.clear();
    receiver_->store().EraseIdentity(root_);
    return MegaBytes() / seconds;
  }
  double RawStreamRate() { return StreamRate(DrainRawStream, raw_channel_); }
  double MessageStreamRate() { return StreamRate(DrainMessageStream, message_channel_); }

 private:
  static std::shared_ptr<grpc::Channel> Channel(const std::string& address) {
    return MakeChannel(address, grpc::InsecureChannelCredentials());
  }
  size_t block_bytes() const { return static_cast<size_t>(size_.layout.block_bytes); }
  size_t piece_bytes() const { return std::min(kMaxPieceBytes, block_bytes()); }
  template <class Drain>
  double StreamRate(Drain drain, const std::shared_ptr<grpc::Channel>& channel) const {
    const double start = SecondsNow();
    const uint64_t bytes = drain(channel, static_cast<uint32_t>(block_bytes() / piece_bytes() * size_.blocks));
    const double seconds = SecondsNow() - start;
    if (bytes != block_bytes() * size_.blocks) Must(absl::InternalError("the bare stream was cut"));
    return MegaBytes() / seconds;
  }
  double MegaBytes() const { return static_cast<double>(block_bytes() * size_.blocks) / 1e6; }
  std::string MintTicket() {
    Ticket ticket;
    RandomSource::Real().Fill(ticket.id.bytes.data(), ticket.id.bytes.size());
    ticket.sender = "sender";
    ticket.sender_incarnation = sender_incarnation_;
    ticket.receiver = "receiver";
    ticket.receiver_incarnation = receiver_incarnation_;
    ticket.root = root_;
    ticket.last_key = keys_.back();
    ticket.block_count = size_.blocks;
    ticket.expiry = absl::FromUnixMillis(absl::ToUnixMillis(absl::Now() + kPatience));
    return SealTicket(ticket, DeriveTicketKey(kBenchSecret));
  }

  const BlockSize size_;
  const Incarnation sender_incarnation_ = NewIncarnation(RandomSource::Real());
  const Incarnation receiver_incarnation_ = NewIncarnation(RandomSource::Real());
  const RootKey root_;
  const std::vector<BlockKey> keys_;
  const std::unique_ptr<WorkerCore> sender_;
  BlockServer block_server_;
  FetchServer fetch_server_;
  FetchService fetch_service_;
  ProbeServer fetch_listener_;
  RawStreamService raw_service_;
  ProbeServer raw_listener_;
  const std::shared_ptr<grpc::Channel> raw_channel_;
  MessageStreamService message_service_;
  ProbeServer message_listener_;
  const std::shared_ptr<grpc::Channel> message_channel_;
  std::unique_ptr<WorkerCore> receiver_;
  GrpcTransport* transport_ = nullptr;  // the receiver's
  std::vector<std::byte> targets_;
};

int Run(const BenchOptions& options) {
  Report report("fetch_bench", options);
  const absl::Duration window = options.window(absl::Milliseconds(150));
  // The median of as many passes as fill a window.
  const auto passes = [&](const std::function<double()>& pass) -> Sample {
    std::vector<double> rates;
    const double end = SecondsNow() + absl::ToDoubleSeconds(window);
    do {
      rates.push_back(pass());
    } while (SecondsNow() < end);
    return {Percentile(std::move(rates), 0.5)};
  };
  for (const BlockSize& size : kSizes) {
    FetchWorld world(size);
    const auto transport = [&] { return passes([&] { return world.TransportRate(); }); };
    const auto fetch = [&] { return passes([&] { return world.FetchRate(); }); };
    const auto raw = [&] { return passes([&] { return world.RawStreamRate(); }); };
    const auto message = [&] { return passes([&] { return world.MessageStreamRate(); }); };
    const std::string name = absl::StrCat(size.name, " blocks");
    const int rounds = options.rounds(7);
    report.Add(absl::StrCat("transport, ", name), "MB/s", 1, "raw stream", Alternate(rounds, transport, raw), 0, kBar);
    report.Add(absl::StrCat("transport, ", name), "MB/s", 1, "message stream", Alternate(rounds, transport, message), 0,
               kBar);
    report.Add(absl::StrCat("fetch, ", name), "MB/s", 1, "raw stream", Alternate(rounds, fetch, raw));
  }
  return report.Finish();
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  return kvmesh::Run(kvmesh::ParseBenchOptions(argc, argv, "Block transfer over gRPC against a bare byte stream"));
}
