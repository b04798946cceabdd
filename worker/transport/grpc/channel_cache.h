// Connections to peers, kept for the next transfer.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_CHANNEL_CACHE_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_CHANNEL_CACHE_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kvmesh/v1/worker.grpc.pb.h"  // also tells gRPC how to encode the request
#include "kvstore/base/mutex.h"

namespace kvmesh {

// Makes a channel to host:port without waiting; see MakeChannel in kvstore/service/grpc_server.h. Thread safe.
using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;

// A channel to one peer's Worker service. Calls on it may be made from any thread. The stub leaves responses encoded.
struct PeerChannel {
  explicit PeerChannel(std::shared_ptr<grpc::Channel> to) : channel(std::move(to)), stub(channel) {}
  const std::shared_ptr<grpc::Channel> channel;
  grpc::TemplatedGenericStub<v1::FetchBlocksRequest, grpc::ByteBuffer> stub;
};

// At most `capacity` channels, the least recently used goes first. One that goes, or is forgotten, closes when the
// transfers that run on it have ended. Thread safe.
class ChannelCache {
 public:
  // REQUIRES: capacity >= 1.
  ChannelCache(ChannelFactory make_channel, size_t capacity);

  // The peer's channel, made when there is none.
  std::shared_ptr<PeerChannel> Get(const std::string& address);
  // The next Get makes a new one, without the back-off of a connection that failed. Nothing when `peer` is no longer
  // the address's.
  void Forget(const std::string& address, const std::shared_ptr<PeerChannel>& peer);
  size_t size() const;

 private:
  struct Entry {
    std::string address;
    std::shared_ptr<PeerChannel> peer;
  };

  const ChannelFactory make_channel_;
  const size_t capacity_;
  mutable Mutex mu_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mu_);  // most recently used first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_address_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_CHANNEL_CACHE_H_
