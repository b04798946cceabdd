#include "worker/server/command_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/wire/wire.h"
#include "worker/server/decode.h"

namespace kvmesh {
namespace {

constexpr uint64_t kMaxPinMillis = 86'400'000;
// What a pin or prefetch may take; a shutdown waits for it.
constexpr absl::Duration kOrderDeadline = absl::Seconds(8);

}  // namespace

absl::StatusOr<uint64_t> CommandRunner::Pin(const v1::PinCommand& command) {
  if (command.pin_id().empty() || command.pin_id().size() > 128) {
    return absl::InvalidArgumentError("pin_id: must have 1 to 128 bytes");
  }
  if (command.ttl_ms() == 0 || command.ttl_ms() > kMaxPinMillis) {
    return absl::InvalidArgumentError(absl::StrCat("ttl_ms: ", command.ttl_ms(), ", must be 1 to ", kMaxPinMillis));
  }
  const absl::StatusOr<std::span<const BlockKey>> keys = KeysFromBytes(command.block_keys(), "block_keys");
  if (!keys.ok()) return keys.status();
  const absl::Time now = core_.options().clock->Now();
  BlockStore::Acquired held = core_.store().Acquire(*keys, LossyFormats(), now + kOrderDeadline);
  if (held.pins.size() < keys->size()) {
    const std::string message = absl::StrCat("pin: ", held.pins.size(), " of ", keys->size(),
                                             " blocks could be pinned: ", MissReasonName(held.stopped_by));
    const bool limit = held.stopped_by == MissReason::kPinLimit || held.stopped_by == MissReason::kPoolFull;
    return limit ? absl::ResourceExhaustedError(message) : absl::NotFoundError(message);
  }
  const uint64_t blocks = held.pins.size();
  KVMESH_RETURN_IF_ERROR(
      core_.pins().Set(command.pin_id(), std::move(held.pins), now + absl::Milliseconds(command.ttl_ms())));
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
  ResumeResult resumed = core_.resumer().Resume({.root = *root,
                                                 .keys = *keys,
                                                 .sources = *sources,
                                                 .accepted = LossyFormats(),
                                                 .deadline = core_.options().clock->Now() + kOrderDeadline,
                                                 .sibling_deadline = absl::InfinitePast(),
                                                 .counted = false});
  resumed.to_compute.Reset();
  return resumed.pins.size();
}

absl::StatusOr<uint64_t> CommandRunner::ClearIdentity(const v1::ClearIdentityCommand& command) {
  const absl::StatusOr<RootKey> root = FixedFromBytes<RootKey>(command.root(), "root");
  if (!root.ok()) return root.status();
  return core_.store().EraseIdentity(*root);
}

absl::StatusOr<uint64_t> CommandRunner::Drain(const v1::DrainCommand& command) {
  core_.SetDraining(command.draining());
  on_drain_(core_.draining());
  return 0;
}

}  // namespace kvmesh
