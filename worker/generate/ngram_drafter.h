// Drafts for speculative decoding from a sequence's own tokens: what followed the last time that its end occurred.
#ifndef KVMESH_WORKER_GENERATE_NGRAM_DRAFTER_H_
#define KVMESH_WORKER_GENERATE_NGRAM_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvmesh {

struct NgramOptions {
  size_t min_match = 2;   // tokens at the end that must occur earlier for a draft; at least 1
  size_t max_match = 12;  // longer matches are no better than one of this length
  size_t window = 16384;  // tokens at the end that are looked at
};

// Up to `count` tokens that may follow `tokens`; none without a match. Of all earlier places in the window that end
// with the same tokens as the whole, the one with the longest match is taken, the latest among equals, and what follows
// it is the draft; where that reaches the end, the draft goes on with its own beginning. Keeps no state; takes time of
// at most window * max_match comparisons. REQUIRES: 1 <= min_match <= max_match.
std::vector<uint32_t> DraftByNgram(std::span<const uint32_t> tokens, size_t count, const NgramOptions& options = {});

}  // namespace kvmesh

#endif  // KVMESH_WORKER_GENERATE_NGRAM_DRAFTER_H_
