#include "worker/server/command_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/wire/pins.h"
#include "kvstore/wire/wire.h"
#include "worker/server/decode.h"

namespace kvmesh {
namespace {

// What a pin or prefetch may take; a shutdown waits for it.
constexpr absl::Duration kOrderDeadline = absl::Seconds(8);

}  // namespace

absl::Status PinRefusal(MissReason stopped_by, size_t pinned, size_t wanted) {
  const std::string message =
      absl::StrCat("pin: ", pinned, " of ", wanted, " blocks could be pinned: ", MissReasonName(stopped_by));
  switch (stopped_by) {
    case MissReason::kPinLimit:
    case MissReason::kPoolFull:
      return absl::ResourceExhaustedError(message);
    case MissReason::kDeadline:
      return absl::DeadlineExceededError(message);
    case MissReason::kCorrupt:
      return absl::DataLossError(message);
    case MissReason::kIoError:
      return absl::UnavailableError(message);
    case MissReason::kAbsent:
    case MissReason::kLossy:
      break;
  }
  return absl::NotFoundError(message);
}

absl::StatusOr<uint64_t> CommandRunner::Pin(const v1::PinCommand& command) {
  KVMESH_RETURN_IF_ERROR(CheckPinIdOfTenant(command.pin_id()));
  const absl::StatusOr<absl::Duration> time = PinTime(command.ttl_ms());
  if (!time.ok()) return time.status();
  const absl::StatusOr<std::span<const BlockKey>> keys = KeysFromBytes(command.block_keys(), "block_keys");
  if (!keys.ok()) return keys.status();
  const absl::Time now = core_.options().clock->Now();
  BlockStore::Acquired held = core_.store().Acquire(*keys, LossyFormats(), now + kOrderDeadline);
  if (held.pins.size() < keys->size()) return PinRefusal(held.stopped_by, held.pins.size(), keys->size());
  const uint64_t blocks = held.pins.size();
  KVMESH_RETURN_IF_ERROR(core_.pins().Set(command.pin_id(), std::move(held.pins), now + *time));
  return blocks;
}

absl::StatusOr<uint64_t> CommandRunner::Unpin(const v1::UnpinCommand& command) {
  if (!core_.pins().Drop(command.pin_id()))
    return absl::NotFoundError(absl::StrCat("pin_id: no pin ", command.pin_id()));
  return 0;
}

absl::StatusOr<uint64_t> CommandRunner::Prefetch(const v1::PrefetchCommand& command) {
  const absl::StatusOr<RootKey> root = FixedFromBytes<RootKey>(command.root(), "root");
  if (!root.ok()) return root.status();
  const absl::StatusOr<std::span<const BlockKey>> keys = KeysFromBytes(command.block_keys(), "block_keys");
  if (!keys.ok()) return keys.status();
  const absl::StatusOr<std::vector<PeerSource>> sources = SourcesFromProto(command.sources());
  if (!sources.ok()) return sources.status();
  const auto block_tokens = static_cast<uint64_t>(core_.store().device().layout().block_tokens);
  const absl::StatusOr<std::vector<CacheGroup>> groups = core_.Groups(StreamingPolicy());
  if (!groups.ok()) return groups.status();
  ResumeResult resumed = core_.resumer().Resume({.groups = *groups,
                                                 .root = *root,
                                                 .keys = *keys,
                                                 .tokens = keys->size() * block_tokens,  // enough for a full hit too
                                                 .sources = *sources,
                                                 .accepted = LossyFormats(),
                                                 .deadline = core_.options().clock->Now() + kOrderDeadline,
                                                 .sibling_deadline = absl::InfinitePast(),
                                                 .counted = false});
  resumed.to_compute.Reset();
  return resumed.blocks();
}

absl::StatusOr<uint64_t> CommandRunner::ClearIdentity(const v1::ClearIdentityCommand& command) {
  const absl::StatusOr<RootKey> root = FixedFromBytes<RootKey>(command.root(), "root");
  if (!root.ok()) return root.status();
  return core_.EraseIdentity(*root);
}

absl::StatusOr<uint64_t> CommandRunner::Drain(const v1::DrainCommand& command) {
  core_.SetDraining(command.draining());
  on_drain_(core_.draining());
  return 0;
}

}  // namespace kvmesh
