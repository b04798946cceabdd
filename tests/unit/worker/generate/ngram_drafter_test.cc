#include "worker/generate/ngram_drafter.h"

#include <gtest/gtest.h>

#include <random>

namespace kvmesh {
namespace {

using Tokens = std::vector<uint32_t>;

// The rule, literally: from the longest match to the shortest, from the latest place to the earliest.
Tokens LiteralDraft(Tokens tokens, size_t count, const NgramOptions& options) {
  if (tokens.size() > options.window) {
    tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(options.window));
  }
  for (size_t length = options.max_match; length >= options.min_match; --length) {
    for (size_t end = tokens.size(); end-- > length;) {
      if (!std::equal(tokens.end() - static_cast<ptrdiff_t>(length), tokens.end(),
                      tokens.begin() + static_cast<ptrdiff_t>(end - length))) {
        continue;
      }
      Tokens all = tokens;
      for (size_t i = 0; i < count; ++i) all.push_back(all[end + i]);
      return Tokens(all.end() - static_cast<ptrdiff_t>(count), all.end());
    }
  }
  return {};
}

TEST(NgramDrafterTest, ProposesWhatFollowedTheLongestMatch) {
  EXPECT_EQ(DraftByNgram(Tokens{}, 4), Tokens{});
  EXPECT_EQ(DraftByNgram(Tokens{7}, 4), Tokens{});
  EXPECT_EQ(DraftByNgram(Tokens{1, 2, 3, 4}, 4), Tokens{});
  EXPECT_EQ(DraftByNgram(Tokens{1, 2, 3, 9, 1, 2}, 1), (Tokens{3}));
  EXPECT_EQ(DraftByNgram(Tokens{1, 2, 3, 9, 1, 2}, 0), Tokens{});
  // 5 1 2 is longer than the later 1 2.
  EXPECT_EQ(DraftByNgram(Tokens{5, 1, 2, 3, 1, 2, 4, 5, 1, 2}, 2), (Tokens{3, 1}));
  EXPECT_EQ(DraftByNgram(Tokens{1, 2, 3, 1, 2, 4, 1, 2}, 2), (Tokens{4, 1})) << "the latest among equals";
  EXPECT_EQ(DraftByNgram(Tokens{8, 1, 9, 1}, 2), Tokens{}) << "one token is no match";
  EXPECT_EQ(DraftByNgram(Tokens{8, 1, 9, 1}, 2, {.min_match = 1}), (Tokens{9, 1}));
}

TEST(NgramDrafterTest, GoesOnWithItsOwnBeginningAtTheEnd) {
  EXPECT_EQ(DraftByNgram(Tokens{1, 2, 3, 1, 2, 3}, 7, {.max_match = 3}), (Tokens{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(DraftByNgram(Tokens{4, 4, 4}, 5), (Tokens{4, 4, 4, 4, 4}));
}

TEST(NgramDrafterTest, LooksNoFurtherBackThanItsWindow) {
  Tokens tokens = {1, 2, 3};
  for (uint32_t i = 0; i < 100; ++i) tokens.push_back(1000 + i);
  tokens.insert(tokens.end(), {1, 2});
  EXPECT_EQ(DraftByNgram(tokens, 1, {.window = 105}), (Tokens{3}));
  EXPECT_EQ(DraftByNgram(tokens, 1, {.window = 104}), Tokens{});
}

TEST(NgramDrafterTest, EqualsTheLiteralRuleOnRandomTokens) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    std::mt19937_64 random(seed);
    Tokens tokens(random() % 60);
    const uint64_t alphabet = 1 + random() % 6;
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % alphabet);
    NgramOptions options;
    options.min_match = 1 + random() % 3;
    options.max_match = options.min_match + random() % 6;
    options.window = 1 + random() % 80;
    const size_t count = random() % 9;
    ASSERT_EQ(DraftByNgram(tokens, count, options), LiteralDraft(tokens, count, options)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvmesh
