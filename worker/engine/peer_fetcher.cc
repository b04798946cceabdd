#include "worker/engine/peer_fetcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

// How long one look at a transfer waits; a deadline is noticed within it.
constexpr absl::Duration kProgressWait = absl::Milliseconds(50);
// How long the end of a pull waits for quiescence before its slots go to quarantine.
constexpr absl::Duration kQuiesceWait = absl::Milliseconds(100);

// Whether it is block `i` of the span.
absl::Status CheckHeader(const BlockHeader& header, const FetchSpan& span, size_t i, LossyFormats accepted) {
  if (!header.lossy_formats.SubsetOf(accepted)) {
    return absl::DataLossError("lossy_formats: the peer sent a block in a format not accepted");
  }
  if (header.root != span.root) return absl::DataLossError("root: the peer sent a block of another identity");
  if (header.parent != (i == 0 ? span.parent : span.keys[i - 1]))
    return absl::DataLossError("parent: the peer sent a block of another chain");
  if (header.group != span.group) return absl::DataLossError("group: the peer sent a block of another layer group");
  if (header.key != span.keys[i]) return absl::DataLossError("key: the peer sent another block");
  const int64_t block_tokens = span.store->device().layout().block_tokens;
  if (header.start_position != (span.first_block + i) * static_cast<uint64_t>(block_tokens)) {
    return absl::DataLossError("start_position: the peer sent a block of another place");
  }
  return absl::OkStatus();
}

}  // namespace

PeerFetcher::PeerFetcher(std::vector<Transport*> transports, const Clock& clock, EngineObserver& observer)
    : transports_(std::move(transports)), clock_(clock), observer_(observer) {}

PeerFetcher::~PeerFetcher() {
  MutexLock lock(mu_);
  for (Quarantined& entry : quarantine_) {
    while (!entry.transport->WaitForProgress(entry.transfer, entry.blocks.size(), kProgressWait).quiescent) {
    }
    entry.transport->Release(entry.transfer);
  }
}

PeerFetcher::Result PeerFetcher::Fetch(const FetchSpan& span, const PeerSource& source, absl::Time deadline,
                                       LossyFormats accepted) {
  SweepQuarantine();
  const absl::Time start = clock_.Now();
  Result result;
  std::vector<PrivateBlock> targets;
  while (targets.size() < span.keys.size()) {
    absl::StatusOr<PrivateBlock> target = span.store->Allocate(deadline);
    if (!target.ok()) {
      result.status = target.status();
      break;
    }
    targets.push_back(*std::move(target));
  }
  // Blocks of a window are of use together.
  if (targets.empty() || (span.group > 0 && !result.status.ok())) return result;

  absl::StatusOr<std::pair<Transport*, TransferId>> started = Start(span, source, targets, deadline);
  if (!started.ok()) {
    observer_.OnFetch(source.peer_id, "none", started.status(), 0, clock_.Now() - start);
    result.status = started.status();
    return result;
  }
  const auto [transport, transfer] = *started;
  const absl::Status received = Receive(*transport, transfer, span, targets, deadline, accepted, result.pins);
  if (result.status.ok()) result.status = received;
  Finish(*transport, transfer, std::move(targets));
  observer_.OnFetch(source.peer_id, transport->name(), received,
                    result.pins.size() * static_cast<uint64_t>(span.store->device().layout().block_bytes),
                    clock_.Now() - start);
  return result;
}

absl::StatusOr<std::pair<Transport*, TransferId>> PeerFetcher::Start(const FetchSpan& span, const PeerSource& source,
                                                                     std::span<const PrivateBlock> targets,
                                                                     absl::Time deadline) {
  absl::Status last = absl::UnavailableError("no transport");
  for (Transport* transport : transports_) {
    TransferRequest request{.peer_id = source.peer_id,
                            .peer_address = source.peer_address,
                            .ticket = source.ticket,
                            .layout = span.store->layout_fingerprint(),
                            .group = span.group,
                            .targets = {},
                            .deadline = deadline};
    for (const PrivateBlock& target : targets) request.targets.push_back(span.store->device().bytes(target.block()));
    absl::StatusOr<TransferId> transfer = transport->Prepare(std::move(request));
    if (transfer.ok()) {
      {
        MutexLock lock(mu_);
        ++in_flight_;
      }
      transport->Post(*transfer);
      return std::make_pair(transport, *transfer);
    }
    last = transfer.status();
  }
  return last;
}

absl::Status PeerFetcher::Receive(Transport& transport, TransferId transfer, const FetchSpan& span,
                                  std::vector<PrivateBlock>& targets, absl::Time deadline, LossyFormats accepted,
                                  std::vector<BlockPin>& pins) {
  while (true) {
    const TransferProgress progress = transport.WaitForProgress(transfer, pins.size(), kProgressWait);
    for (const BlockHeader& header : progress.arrived) {
      const size_t i = pins.size();
      if (i == targets.size()) break;
      KVMESH_RETURN_IF_ERROR(CheckHeader(header, span, i, accepted));
      absl::StatusOr<BlockPin> pin = span.store->Publish(std::move(targets[i]), header);
      if (!pin.ok()) return pin.status();
      pins.push_back(*std::move(pin));
    }
    if (progress.finished) return progress.result;
    if (clock_.Now() >= deadline) return absl::DeadlineExceededError("fetch: the deadline came first");
  }
}

void PeerFetcher::Finish(Transport& transport, TransferId transfer, std::vector<PrivateBlock> targets) {
  const size_t seen = targets.size();
  transport.Cancel(transfer);
  TransferProgress progress = transport.Poll(transfer, seen);
  const absl::Time until = absl::Now() + kQuiesceWait;
  while (!progress.quiescent && absl::Now() < until) {
    progress = transport.WaitForProgress(transfer, seen, until - absl::Now());
  }
  MutexLock lock(mu_);
  --in_flight_;
  if (progress.quiescent) {
    transport.Release(transfer);
    return;
  }
  quarantine_.push_back({&transport, transfer, std::move(targets)});
}

void PeerFetcher::SweepQuarantine() {
  MutexLock lock(mu_);
  for (auto it = quarantine_.begin(); it != quarantine_.end();) {
    if (!it->transport->Poll(it->transfer, it->blocks.size()).quiescent) {
      ++it;
      continue;
    }
    it->transport->Release(it->transfer);
    it = quarantine_.erase(it);
  }
}

uint64_t PeerFetcher::quarantined_blocks() const {
  MutexLock lock(mu_);
  uint64_t blocks = 0;
  for (const Quarantined& entry : quarantine_) {
    for (const PrivateBlock& block : entry.blocks) blocks += block ? 1 : 0;
  }
  return blocks;
}

uint64_t PeerFetcher::transfers_in_flight() const {
  MutexLock lock(mu_);
  return in_flight_;
}

}  // namespace kvmesh
