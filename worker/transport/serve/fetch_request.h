// What a receiver asks of a sender, whatever the transport, and what the sender's answer means to it.
#ifndef KVMESH_WORKER_TRANSPORT_SERVE_FETCH_REQUEST_H_
#define KVMESH_WORKER_TRANSPORT_SERVE_FETCH_REQUEST_H_

#include <string>

#include "absl/strings/string_view.h"
#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "worker/transport/transport.h"

namespace kvmesh {

// INVALID_ARGUMENT naming the field: no target, an empty target, or an infinite deadline.
absl::Status CheckTransferRequest(const TransferRequest& request);

// The request of a receiver with that id and incarnation.
v1::FetchBlocksRequest MakeFetchRequest(const TransferRequest& request, const std::string& receiver_id,
                                        const Incarnation& receiver_incarnation);

// The result, in the codes of TransferProgress, that a sender's status other than OK stands for.
absl::Status FetchFailure(absl::StatusCode code, absl::string_view message);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_SERVE_FETCH_REQUEST_H_
