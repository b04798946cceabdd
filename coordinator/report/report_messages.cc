#include "coordinator/report/report_messages.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvstore/block/block_header.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

static_assert(sizeof(WorkerDescription::layout) == LayoutFingerprint::kSize);

// Assigns the fixed bytes to `out`.
template <class T>
absl::Status Read(const std::string& bytes, absl::string_view field, T& out) {
  const absl::StatusOr<T> value = FixedFromBytes<T>(bytes, field);
  if (value.ok()) out = *value;
  return value.status();
}

}  // namespace

std::optional<IndexSet> FromWire(v1::BlockSet set) {
  switch (set) {
    case v1::BLOCK_SET_DEVICE:
      return IndexSet::kDevice;
    case v1::BLOCK_SET_MEMORY:
      return IndexSet::kMemory;
    case v1::BLOCK_SET_DISK:
      return IndexSet::kDisk;
    default:
      return std::nullopt;
  }
}

v1::BlockSet ToWire(IndexSet set) {
  switch (set) {
    case IndexSet::kDevice:
      return v1::BLOCK_SET_DEVICE;
    case IndexSet::kMemory:
      return v1::BLOCK_SET_MEMORY;
    case IndexSet::kDisk:
      break;
  }
  return v1::BLOCK_SET_DISK;
}

absl::StatusOr<StoredRun> FromWire(const v1::StoredEvent& event) {
  StoredRun run;
  KVMESH_RETURN_IF_ERROR(Read(event.root(), "stored.root", run.root));
  KVMESH_RETURN_IF_ERROR(Read(event.parent(), "stored.parent", run.parent));
  const auto keys = KeysFromBytes(event.keys(), "stored.keys");
  if (!keys.ok()) return keys.status();
  run.keys = *keys;
  run.first_block = event.first_block();
  run.lossy_formats = LossyFormats(event.lossy_formats());
  return run;
}

absl::StatusOr<SetSummary> FromWire(const v1::DigestEvent& event) {
  SetSummary summary{.count = event.count()};
  KVMESH_RETURN_IF_ERROR(Read(event.sum(), "digest.sum", summary.sum));
  return summary;
}

absl::StatusOr<WorkerDescription> FromWire(const v1::WorkerInfo& info) {
  WorkerDescription out;
  out.id = info.worker_id();
  KVMESH_RETURN_IF_ERROR(Read(info.incarnation(), "register.incarnation", out.incarnation));
  out.address = info.address();
  out.protocol_version = info.protocol_version();
  if (!info.layout_fingerprint().empty()) {
    LayoutFingerprint layout;
    KVMESH_RETURN_IF_ERROR(Read(info.layout_fingerprint(), "register.layout_fingerprint", layout));
    std::memcpy(&out.layout, layout.bytes.data(), sizeof(out.layout));
  }
  out.block_tokens = info.block_tokens();
  out.block_bytes = info.block_bytes();
  out.prefill_tokens_per_second = info.prefill_tokens_per_second();
  out.host_bytes_per_second = info.host_bytes_per_second();
  out.disk_bytes_per_second = info.disk_bytes_per_second();
  out.peer_bytes_per_second = info.peer_bytes_per_second();
  out.draining = info.draining();
  switch (info.boundaries()) {
    case v1::BOUNDARIES_UNSPECIFIED:
      break;
    case v1::BOUNDARIES_USABLE:
      out.boundaries = BoundaryRule::kUsable;
      break;
    case v1::BOUNDARIES_USABLE_ALONE:
      out.boundaries = BoundaryRule::kUsableAlone;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("register.boundaries: ", static_cast<int>(info.boundaries()), " is unknown"));
  }
  out.registration = info.SerializeAsString();
  return out;
}

}  // namespace kvmesh
