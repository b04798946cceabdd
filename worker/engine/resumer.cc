#include "worker/engine/resumer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"
#include "worker/engine/window_resume.h"

namespace kvmesh {
namespace {

bool HasWindow(std::span<const CacheGroup> groups) {
  return std::any_of(groups.begin(), groups.end(), [](const CacheGroup& group) { return group.window > 0; });
}

const CacheGroup* Chain(std::span<const CacheGroup> groups) {
  const auto chain =
      std::find_if(groups.begin(), groups.end(), [](const CacheGroup& group) { return group.number == 0; });
  return chain == groups.end() ? nullptr : &*chain;
}

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
  std::string reason;
  Sources sources{.chain = std::vector<bool>(request.sources.size()),
                  .window = std::vector<bool>(request.sources.size())};
  do {
    result = {};
    result = ResumeGroups(request, sources, reason);
  } while (HasWindow(request.groups) && !ClaimRest(request, result));

  if (!request.counted) return result;
  const uint32_t block_tokens = static_cast<uint32_t>(store_.device().layout().block_tokens);
  const uint64_t missed = (request.keys.size() - result.blocks()) * uint64_t{block_tokens};
  if (missed > 0) observer_.OnMiss(reason, missed);
  observer_.OnResume(request.keys.size() * uint64_t{block_tokens}, result.TokensBySource(block_tokens),
                     clock_.Now() - start);
  observer_.OnLossyHits(result.LossyTokensBySource(block_tokens));
  return result;
}

ResumeResult Resumer::ResumeGroups(const ResumeRequest& request, Sources& sources, std::string& reason) {
  ResumeResult result;
  result.held.resize(request.groups.size());
  reason = std::string(MissReasonName(MissReason::kAbsent));
  const CacheGroup* chain = Chain(request.groups);
  std::vector<BlockPin> pins;
  if (chain != nullptr) pins = ResumeChain(request, sources.chain, result, reason);
  if (HasWindow(request.groups)) {
    const auto pull = [&](const CacheGroup& group, uint32_t first, uint32_t boundary) {
      return PullWindow(request, group, first, boundary, sources.window);
    };
    WindowResume windows = ResumeWindows({.groups = request.groups,
                                          .keys = request.keys,
                                          .tokens = request.tokens,
                                          .limit = chain == nullptr ? request.keys.size() : pins.size(),
                                          .accepted = request.accepted,
                                          .deadline = request.deadline,
                                          .pull = pull});
    if (windows.boundary < pins.size()) reason = "window";
    result.held = std::move(windows.held);
    if (chain == nullptr) result.found_in = std::move(windows.found_in);
    result.found_in.resize(windows.boundary);
  }
  if (chain != nullptr) {
    std::vector<HeldBlock>& held = result.held[static_cast<size_t>(chain - request.groups.data())];
    held.reserve(result.blocks());
    for (uint32_t i = 0; i < result.blocks(); ++i) held.push_back({i, std::move(pins[i])});
  }
  return result;
}

bool Resumer::ClaimRest(const ResumeRequest& request, ResumeResult& result) {
  if (result.to_compute.size() > 0 || result.blocks() == request.keys.size()) return true;
  result.to_compute = computing_.ClaimLeading(request.keys.subspan(result.blocks()));
  return result.to_compute.size() > 0 || !computing_.Wait(request.keys[result.blocks()], request.sibling_deadline);
}

std::vector<BlockPin> Resumer::ResumeChain(const ResumeRequest& request, std::vector<bool>& used, ResumeResult& result,
                                           std::string& reason) {
  std::vector<BlockPin> pins;
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
    PeerFetcher::Result fetched = fetcher_.Fetch({.store = &store_,
                                                  .root = request.root,
                                                  .parent = parent,
                                                  .keys = request.keys.subspan(source.first_block, count),
                                                  .first_block = source.first_block},
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

std::vector<BlockPin> Resumer::PullWindow(const ResumeRequest& request, const CacheGroup& group, uint32_t first,
                                          uint32_t boundary, std::vector<bool>& used) {
  for (size_t s = 0; s < request.sources.size(); ++s) {
    const PeerSource& source = request.sources[s];
    if (used[s] || uint64_t{source.first_block} + source.block_count != boundary) continue;
    std::vector<BlockKey> keys;
    for (const BlockKey& key : request.keys.subspan(first, boundary - first)) {
      keys.push_back(ComputeGroupKey(key, group.number));
    }
    while (clock_.Now() < request.deadline) {
      SingleFlight::Claim claim = fetching_.ClaimLeading(keys);
      // By a fetch that ended before the claim.
      BlockStore::Acquired held = group.store->Acquire(keys, request.accepted, request.deadline);
      if (held.pins.size() == keys.size()) return std::move(held.pins);
      if (claim.size() < keys.size()) {
        const BlockKey other = keys[claim.size()];
        claim.Reset();
        if (!fetching_.Wait(other, request.deadline)) return {};
        continue;
      }
      used[s] = true;
      PeerFetcher::Result fetched =
          fetcher_.Fetch({.store = group.store,
                          .group = group.number,
                          .root = request.root,
                          .parent = first == 0 ? RootAsParent(request.root) : request.keys[first - 1],
                          .keys = request.keys.subspan(first, boundary - first),
                          .first_block = first},
                         source, request.deadline, request.accepted);
      if (fetched.pins.size() == keys.size()) return std::move(fetched.pins);
      break;
    }
  }
  return {};
}

}  // namespace kvmesh
