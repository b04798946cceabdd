#include "worker/engine/observer.h"

#include "absl/strings/ascii.h"

namespace kvmesh {

std::string StatusLabel(const absl::Status& status) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(status.code()));
}

}  // namespace kvmesh
