#include "worker/transport/serve/fetch_request.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvmesh {

absl::Status CheckTransferRequest(const TransferRequest& request) {
  if (request.targets.empty()) return absl::InvalidArgumentError("targets: none");
  if (std::any_of(request.targets.begin(), request.targets.end(), [](const auto& target) { return target.empty(); })) {
    return absl::InvalidArgumentError("targets: an empty one");
  }
  if (request.deadline == absl::InfiniteFuture()) return absl::InvalidArgumentError("deadline: infinite");
  return absl::OkStatus();
}

v1::FetchBlocksRequest MakeFetchRequest(const TransferRequest& request, const std::string& receiver_id,
                                        const Incarnation& receiver_incarnation) {
  v1::FetchBlocksRequest message;
  message.set_ticket(request.ticket);
  message.set_receiver_id(receiver_id);
  message.set_receiver_incarnation(receiver_incarnation.ToString());
  message.set_layout_fingerprint(request.layout.ToString());
  message.set_max_blocks(static_cast<uint32_t>(request.targets.size()));
  message.set_group(request.group);
  return message;
}

absl::Status FetchFailure(absl::StatusCode code, absl::string_view message) {
  switch (code) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kDataLoss:
      return absl::Status(code, message);
    // The request is nothing but the ticket and who presents it.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(absl::StrCat("peer: status ", static_cast<int>(code), ": ", message));
  }
}

}  // namespace kvmesh
