#include "worker/engine/window_resume.h"

#include <algorithm>
#include <utility>

#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

// One window group's blocks along the prompt.
struct Presence {
  const CacheGroup* group;
  uint32_t block_tokens;
  std::vector<BlockKey> keys;
  std::vector<uint32_t> run;  // by block count b: blocks held in a row that end with block b - 1
  std::vector<bool> pulled;   // by block
};

// From block `first` on.
void CountRuns(Presence& presence, LossyFormats accepted, size_t first) {
  for (size_t i = first; i < presence.keys.size(); ++i) {
    const BlockStore::Match match = presence.group->store->Lookup({&presence.keys[i], 1}, accepted);
    const bool held = std::any_of(match.blocks.begin(), match.blocks.end(), [](uint32_t blocks) { return blocks > 0; });
    presence.run[i + 1] = held ? presence.run[i] + 1 : 0;
  }
}

bool Covers(const Presence& presence, const NeededBlocks& needed) {
  return presence.run[needed.end] >= needed.end - needed.first && presence.run[needed.sinks] >= needed.sinks;
}

// Gets from a peer what `needed` lacks. Returns the pins, so that the blocks stay.
std::vector<BlockPin> Pull(Presence& presence, const NeededBlocks& needed, const WindowRequest& request) {
  uint32_t first = needed.first;
  while (first < needed.end && presence.run[first + 1] > 0) ++first;
  if (first == needed.end) return {};
  std::vector<BlockPin> pins = request.pull(*presence.group, first, needed.end);
  for (size_t i = 0; i < pins.size(); ++i) presence.pulled[first + i] = true;
  CountRuns(presence, request.accepted, first);
  return pins;
}

// Pins blocks [begin, end). False: one is lost, and is taken for absent from now on.
bool Pin(Presence& presence, uint32_t begin, uint32_t end, const WindowRequest& request, std::vector<HeldBlock>& held,
         std::vector<HitSource>& found_in) {
  BlockStore::Acquired acquired = presence.group->store->Acquire(std::span(presence.keys).subspan(begin, end - begin),
                                                                 request.accepted, request.deadline);
  for (uint32_t i = 0; i < acquired.pins.size(); ++i) {
    held.push_back({begin + i, std::move(acquired.pins[i])});
    const HitSource source = presence.pulled[begin + i] ? HitSource::kPeer : SourceOf(acquired.found_in[i]);
    found_in[begin + i] = std::max(found_in[begin + i], source);
  }
  const auto lost = begin + static_cast<uint32_t>(acquired.pins.size());
  if (lost == end) return true;
  presence.run[lost + 1] = 0;
  for (size_t i = lost + 1; i < presence.keys.size() && presence.run[i + 1] > 0; ++i) {
    presence.run[i + 1] = presence.run[i] + 1;
  }
  return false;
}

}  // namespace

WindowResume ResumeWindows(const WindowRequest& request) {
  std::vector<Presence> windows;
  for (const CacheGroup& group : request.groups) {
    if (group.window == 0) continue;
    Presence presence{.group = &group,
                      .block_tokens = static_cast<uint32_t>(group.store->device().layout().block_tokens),
                      .keys = {},
                      .run = std::vector<uint32_t>(request.limit + 1),
                      .pulled = std::vector<bool>(request.limit)};
    for (const BlockKey& key : request.keys.first(request.limit)) {
      presence.keys.push_back(ComputeGroupKey(key, group.number));
    }
    CountRuns(presence, request.accepted, 0);
    windows.push_back(std::move(presence));
  }
  std::vector<NeededBlocks> needed;
  for (size_t boundary = request.limit; boundary > 0; --boundary) {
    needed.clear();
    bool covered = true;
    std::vector<BlockPin> pulled;
    for (Presence& window : windows) {
      needed.push_back(
          BlocksToContinue(*window.group, static_cast<uint32_t>(boundary), request.tokens, window.block_tokens));
      if (!Covers(window, needed.back())) {
        for (BlockPin& pin : Pull(window, needed.back(), request)) pulled.push_back(std::move(pin));
      }
      covered = covered && Covers(window, needed.back());
    }
    if (!covered) continue;
    WindowResume out{
        .boundary = boundary, .held = {}, .found_in = std::vector<HitSource>(boundary, HitSource::kDevice)};
    out.held.resize(request.groups.size());
    for (size_t i = 0; i < windows.size() && covered; ++i) {
      std::vector<HeldBlock>& held = out.held[static_cast<size_t>(windows[i].group - request.groups.data())];
      covered = Pin(windows[i], 0, needed[i].sinks, request, held, out.found_in) &&
                Pin(windows[i], needed[i].first, needed[i].end, request, held, out.found_in);
    }
    if (!covered) continue;
    for (size_t i = boundary; i-- > 1;) {
      const bool is_needed = std::any_of(needed.begin(), needed.end(), [i](const NeededBlocks& blocks) {
        return blocks.Has(static_cast<uint32_t>(i - 1));
      });
      if (!is_needed) out.found_in[i - 1] = out.found_in[i];
    }
    return out;
  }
  return {.boundary = 0, .held = std::vector<std::vector<HeldBlock>>(request.groups.size()), .found_in = {}};
}

}  // namespace kvmesh
