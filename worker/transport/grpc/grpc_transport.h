// Moves blocks over a gRPC stream per transfer: the transport that works between any two workers.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_GRPC_TRANSPORT_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_GRPC_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/mutex.h"
#include "worker/transport/grpc/channel_cache.h"
#include "worker/transport/grpc/fetch_call.h"
#include "worker/transport/transport.h"

namespace kvmesh {

// Calls Worker.FetchBlocks on the peer and writes the pieces straight into the targets, on gRPC's own threads; one more
// thread watches for silent peers. Targets must be addressable by the host. Besides the codes of transport.h:
// a peer that can't be reached within `timeouts.connect`, or sends nothing for `timeouts.stall`, is UNAVAILABLE.
class GrpcTransport : public Transport {
 public:
  struct Options {
    ChannelFactory make_channel;  // required
    std::string receiver_id;      // this worker, as its tickets name it
    Incarnation receiver_incarnation;
    size_t max_transfers = 256;  // prepared and not released
    size_t max_channels = 256;   // connections kept; at least 1
    FetchTimeouts timeouts;
  };

  explicit GrpcTransport(Options options);
  ~GrpcTransport() override;

  absl::string_view name() const override { return "grpc"; }
  // Always OK: plain memory needs no registration.
  absl::Status RegisterMemory(const KvPoolView& pool) override;
  // INVALID_ARGUMENT also for an empty address, an empty target or an infinite deadline.
  absl::StatusOr<TransferId> Prepare(TransferRequest request) override;
  void Post(TransferId transfer) override;
  TransferProgress Poll(TransferId transfer, size_t seen) override;
  TransferProgress WaitForProgress(TransferId transfer, size_t seen, absl::Duration timeout) override;
  void Cancel(TransferId transfer) override;
  void Release(TransferId transfer) override;

  // Transfers prepared and not released.
  size_t transfers() const;
  size_t channels() const { return channels_.size(); }

 private:
  // REQUIRES: `transfer` is prepared and not released.
  std::shared_ptr<FetchCall> Find(TransferId transfer) const;
  void Watch();

  const Options options_;
  ChannelCache channels_;
  mutable Mutex mu_;
  CondVar posted_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t posts_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<TransferId, std::shared_ptr<FetchCall>> calls_ ABSL_GUARDED_BY(mu_);
  std::thread watcher_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_GRPC_TRANSPORT_H_
