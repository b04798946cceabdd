#include "worker/generate/ngram_drafter.h"

#include <algorithm>

namespace kvmesh {

std::vector<uint32_t> DraftByNgram(std::span<const uint32_t> tokens, size_t count, const NgramOptions& options) {
  if (tokens.size() > options.window) tokens = tokens.last(options.window);
  size_t best = 0;    // tokens matched
  size_t follow = 0;  // the first token behind the match
  for (size_t end = tokens.empty() ? 0 : tokens.size() - 1; end > best && best < options.max_match; --end) {
    const size_t limit = std::min(options.max_match, end);
    size_t matched = 0;
    while (matched < limit && tokens[end - 1 - matched] == tokens[tokens.size() - 1 - matched]) ++matched;
    if (matched > best) {
      best = matched;
      follow = end;
    }
  }
  std::vector<uint32_t> drafts;
  if (best < options.min_match) return drafts;
  drafts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = follow + i;
    drafts.push_back(at < tokens.size() ? tokens[at] : drafts[at - tokens.size()]);
  }
  return drafts;
}

}  // namespace kvmesh
