#include "worker/engine/resumer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/window_resume.h"

namespace kvmesh {
namespace {

bool HasWindow(std::span<const CacheGroup> groups) {
  return std::any_of(groups.begin(), groups.end(), [](const CacheGroup& group) { return group.window > 0; });
}

HitSource SourceOf(Tier tier) { return static_cast<HitSource>(tier); }
static_assert(static_cast<int>(HitSource::kDevice) == static_cast<int>(Tier::kDevice));
static_assert(static_cast<int>(HitSource::kHost) == static_cast<int>(Tier::kHost));
static_assert(static_cast<int>(HitSource::kDisk) == static_cast<int>(Tier::kDisk));

}  // namespace

HitTokensBySource ResumeResult::TokensBySource(uint32_t block_tokens) const {
  HitTokensBySource tokens{};
  for (const HitSource source : found_in) tokens[static_cast<size_t>(source)] += block_tokens;
  return tokens;
}

HitTokensBySource ResumeResult::LossyTokensBySource(uint32_t block_tokens) const {
  std::vector<bool> lossy(found_in.size());
  for (const std::vector<HeldBlock>& blocks : held) {
    for (const HeldBlock& block : blocks) {
      if (!block.pin.header().lossy_formats.exact()) lossy[block.index] = true;
    }
  }
  HitTokensBySource tokens{};
  for (size_t i = 0; i < lossy.size(); ++i) {
    if (lossy[i]) tokens[static_cast<size_t>(found_in[i])] += block_tokens;
  }
  return tokens;
}

std::vector<BlockPin> ResumeResult::TakePins() {
  std::vector<BlockPin> pins;
  for (HeldBlock& block : held[0]) pins.push_back(std::move(block.pin));
  return pins;
}

Resumer::Resumer(BlockStore& store, PeerFetcher& fetcher, const Clock& clock, EngineObserver& observer,
                 absl::Duration max_claim_idle)
    : store_(store),
      fetcher_(fetcher),
      clock_(clock),
      observer_(observer),
      fetching_(clock),
      computing_(clock, max_claim_idle) {}

ResumeResult Resumer::Resume(const ResumeRequest& request) {
  const absl::Time start = clock_.Now();
  ResumeResult result;
  result.held.resize(request.groups.size());
  std::string reason(MissReasonName(MissReason::kAbsent));
  const auto chain = std::find_if(request.groups.begin(), request.groups.end(),
                                  [](const CacheGroup& group) { return group.number == 0; });
  std::vector<BlockPin> pins;
  if (chain != request.groups.end()) pins = ResumeChain(request, result, reason);

  if (HasWindow(request.groups)) {
    WindowResume windows = ResumeWindows({.groups = request.groups,
                                          .keys = request.keys,
                                          .tokens = request.tokens,
                                          .limit = chain == request.groups.end() ? request.keys.size() : pins.size(),
                                          .accepted = request.accepted,
                                          .deadline = request.deadline});
    if (windows.boundary < pins.size()) reason = "window";
    result.held = std::move(windows.held);
    if (chain == request.groups.end()) {
      for (const Tier tier : windows.found_in) result.found_in.push_back(SourceOf(tier));
    }
    result.found_in.resize(windows.boundary);
  }
  if (chain != request.groups.end()) {
    std::vector<HeldBlock>& held = result.held[static_cast<size_t>(chain - request.groups.begin())];
    held.reserve(result.blocks());
    for (uint32_t i = 0; i < result.blocks(); ++i) held.push_back({i, std::move(pins[i])});
  }

  if (!request.counted) return result;
  const uint32_t block_tokens = static_cast<uint32_t>(store_.device().layout().block_tokens);
  const uint64_t missed = (request.keys.size() - result.blocks()) * uint64_t{block_tokens};
  if (missed > 0) observer_.OnMiss(reason, missed);
  observer_.OnResume(request.keys.size() * uint64_t{block_tokens}, result.TokensBySource(block_tokens),
                     clock_.Now() - start);
  observer_.OnLossyHits(result.LossyTokensBySource(block_tokens));
  return result;
}

std::vector<BlockPin> Resumer::ResumeChain(const ResumeRequest& request, ResumeResult& result, std::string& reason) {
  std::vector<BlockPin> pins;
  // A window's blocks are not pulled, and the chain's alone would be of no use.
  std::vector<bool> used(request.sources.size(), HasWindow(request.groups));
  std::string fetch_failure;  // of the last pull, where it failed
  while (pins.size() < request.keys.size()) {
    const std::span<const BlockKey> rest = request.keys.subspan(pins.size());
    BlockStore::Acquired acquired = store_.Acquire(rest, request.accepted, request.deadline);
    for (size_t i = 0; i < acquired.pins.size(); ++i) {
      pins.push_back(std::move(acquired.pins[i]));
      result.found_in.push_back(SourceOf(acquired.found_in[i]));
    }
    if (pins.size() == request.keys.size()) break;
    reason = std::string(MissReasonName(acquired.stopped_by));
    if (acquired.stopped_by == MissReason::kPinLimit || acquired.stopped_by == MissReason::kPoolFull ||
        acquired.stopped_by == MissReason::kDeadline) {
      break;
    }
    if (ExtendFromPeer(request, used, pins, result, fetch_failure)) continue;
    if (acquired.stopped_by == MissReason::kAbsent && !fetch_failure.empty()) reason = fetch_failure;
    const BlockKey& next = request.keys[pins.size()];
    result.to_compute = computing_.ClaimLeading(request.keys.subspan(pins.size()));
    if (result.to_compute.size() == 0) {
      if (computing_.Wait(next, request.sibling_deadline)) continue;
      break;
    }
    // A sibling may have sealed it between the look at the store and the claim.
    if (!OnDevice(request, pins.size())) break;
    result.to_compute.Reset();
  }
  return pins;
}

bool Resumer::OnDevice(const ResumeRequest& request, size_t i) const {
  const BlockStore::Match match = store_.Lookup(request.keys.subspan(i, 1), request.accepted);
  return match.blocks[static_cast<size_t>(BlockSetKind::kDevice)] > 0;
}

bool Resumer::ExtendFromPeer(const ResumeRequest& request, std::vector<bool>& used, std::vector<BlockPin>& pins,
                             ResumeResult& result, std::string& failure) {
  const size_t have = pins.size();
  for (size_t s = 0; s < request.sources.size(); ++s) {
    const PeerSource& source = request.sources[s];
    const uint64_t end = std::min<uint64_t>(uint64_t{source.first_block} + source.block_count, request.keys.size());
    if (used[s] || source.first_block > have || end <= have || clock_.Now() >= request.deadline) continue;
    SingleFlight::Claim claim = fetching_.ClaimLeading(request.keys.subspan(have, end - have));
    if (claim.size() == 0) return fetching_.Wait(request.keys[have], request.deadline);
    if (OnDevice(request, have)) return true;  // by a fetch that ended before the claim
    used[s] = true;                            // a ticket serves once
    const BlockKey parent = source.first_block == 0 ? RootAsParent(request.root) : request.keys[source.first_block - 1];
    const size_t count = have + claim.size() - source.first_block;
    PeerFetcher::Result fetched = fetcher_.Fetch(request.root, parent, request.keys.subspan(source.first_block, count),
                                                 source, request.deadline, request.accepted);
    for (size_t i = have - source.first_block; i < fetched.pins.size(); ++i) {
      pins.push_back(std::move(fetched.pins[i]));
      result.found_in.push_back(HitSource::kPeer);
    }
    failure = fetched.status.ok() ? "" : absl::StrCat("fetch_", StatusLabel(fetched.status));
    if (pins.size() > have) return true;
  }
  return false;
}

}  // namespace kvmesh
