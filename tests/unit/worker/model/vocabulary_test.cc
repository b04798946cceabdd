#include "worker/model/vocabulary.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/local_runner.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Unknown, BOS, EOS, then `pieces` with falling scores -1, -2, ...
std::string PiecesJson(const std::vector<std::string>& pieces) {
  json out = json::array();
  for (const char* special : {"<unk>", "<s>", "</s>"}) out.push_back({{"piece", special}, {"score", 0}});
  for (const std::string& piece : pieces) {
    out.push_back({{"piece", piece}, {"score", 2.0 - static_cast<double>(out.size())}});
  }
  return out.dump();
}

Vocabulary MustParse(const std::vector<std::string>& pieces) {
  absl::StatusOr<Vocabulary> out = Vocabulary::ParsePieces(PiecesJson(pieces));
  EXPECT_TRUE(out.ok()) << out.status();
  return out.ok() ? *std::move(out) : Vocabulary::Bytes();
}

// The definition, literally: merge the best adjacent pair until there is none.
std::vector<std::string> NaiveMerge(std::vector<std::string> units, const std::vector<std::string>& by_score) {
  while (true) {
    size_t best_rank = by_score.size(), best = 0;
    for (size_t i = 0; i + 1 < units.size(); ++i) {
      const auto found = std::find(by_score.begin(), by_score.end(), units[i] + units[i + 1]);
      const auto rank = static_cast<size_t>(found - by_score.begin());
      if (rank < best_rank) best_rank = rank, best = i;
    }
    if (best_rank == by_score.size()) return units;
    units[best] += units[best + 1];
    units.erase(units.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(VocabularyTest, BytesAreTheirOwnIds) {
  const Vocabulary bytes = Vocabulary::Bytes();
  EXPECT_TRUE(bytes.is_bytes());
  EXPECT_EQ(bytes.size(), 256u);
  const std::string text("a\0\xff z", 5);
  EXPECT_THAT(bytes.Encode(text), ElementsAre(97, 0, 255, 32, 122));
  EXPECT_EQ(bytes.Decode(bytes.Encode(text)), text);
  EXPECT_EQ(bytes.Decode(std::vector<uint32_t>{1, 32, 256, 4000000000u}), "\x01 ");
  EXPECT_THAT(bytes.Encode(""), IsEmpty());
}

TEST(VocabularyTest, MergesTheBestPairFirstThenTheLeftmost) {
  //                                           3    4     5     6    7    8
  const Vocabulary vocabulary = MustParse({" ", "bc", "ab", "a", "b", "c"});
  EXPECT_THAT(vocabulary.Encode("abc"), ElementsAre(1, 3, 6, 4));
  EXPECT_THAT(vocabulary.Encode("ababc"), ElementsAre(1, 3, 5, 6, 4));
  const Vocabulary ties = MustParse({" ", "aa", "a"});
  EXPECT_THAT(ties.Encode("aaa"), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(ties.Encode(""), ElementsAre(1));
}

TEST(VocabularyTest, MergesAsTheDefinitionSays) {
  const std::vector<std::string> pieces = {"ab", "ca",  "abc", "bb",   "aab", "cab", "bca", "abab",
                                           " a", " ab", "cc",  "ccab", " ",   "a",   "b",   "c"};
  const Vocabulary vocabulary = MustParse(pieces);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (uint32_t length = random() % 40; length > 0; --length) text += "abc "[random() % 4];
    std::vector<std::string> units;
    if (!text.empty()) units.push_back(" ");
    for (const char c : text) units.emplace_back(1, c);
    std::vector<uint32_t> expected = {1};
    for (const std::string& unit : NaiveMerge(units, pieces)) {
      expected.push_back(3 + static_cast<uint32_t>(std::find(pieces.begin(), pieces.end(), unit) - pieces.begin()));
    }
    ASSERT_EQ(vocabulary.Encode(text), expected) << "seed " << seed << " text " << text;
    ASSERT_EQ(vocabulary.Decode(expected), text) << "seed " << seed;
  }
}

TEST(VocabularyTest, SpaceMarkIsASpace) {
  const Vocabulary vocabulary = MustParse({"\xe2\x96\x81",
                                           "\xe2\x96\x81"
                                           "a",
                                           "a"});
  EXPECT_THAT(vocabulary.Encode("a a"), ElementsAre(1, 4, 4));
  EXPECT_EQ(vocabulary.Piece(4), " a");
  EXPECT_EQ(vocabulary.Decode(vocabulary.Encode("a a")), "a a");
}

TEST(VocabularyTest, CharactersThatAreNoPieceBecomeBytesOrUnknown) {
  const Vocabulary vocabulary = MustParse({" ", "<0xC3>", "<0xA9>", "a", "\xc3\xa8"});
  EXPECT_THAT(vocabulary.Encode("a\xc3\xa9"), ElementsAre(1, 3, 6, 4, 5));
  EXPECT_THAT(vocabulary.Encode("\xc3\xa8"), ElementsAre(1, 3, 7));
  EXPECT_THAT(vocabulary.Encode("\xa9\xc3"), ElementsAre(1, 3, 5, 4));
  EXPECT_THAT(vocabulary.Encode("z"), ElementsAre(1, 3, 0));
  EXPECT_EQ(vocabulary.Decode(std::vector<uint32_t>{6, 4, 5, 2, 0}), "a\xc3\xa9");
}

TEST(VocabularyTest, SpecialAndBytePiecesAreNeverMadeFromText) {
  const Vocabulary vocabulary = MustParse({" ", "<", "s", ">", "<s", "<s>", "<0x41>", "A"});
  EXPECT_THAT(vocabulary.Encode("<s>"), ElementsAre(1, 3, 8));
  EXPECT_THAT(vocabulary.Encode("A"), ElementsAre(1, 3, 10));
  EXPECT_EQ(vocabulary.Piece(1), "");
  EXPECT_EQ(vocabulary.Piece(9), "A");
}

TEST(VocabularyTest, MalformedFilesAreRefused) {
  const std::vector<std::string> texts = {
      "",
      "{}",
      "[]",
      "[1,2,3]",
      PiecesJson({}).substr(1),
      R"([{"piece":"a","score":0},{"piece":"b","score":0}])",
      R"([{"piece":"a","score":0},{"piece":"b","score":0},{"piece":"c"}])",
      R"([{"piece":"a","score":0},{"piece":"b","score":0},{"piece":3,"score":0}])",
      R"([{"piece":"a","score":0},{"piece":"b","score":0},{"piece":"c","score":"0"}])",
      R"([{"piece":"a","score":0},{"piece":"b","score":0},{"piece":"c","score":1e300}])",
      R"([{"piece":"a","score":0},{"piece":"b","score":0},{"piece":"c","score":0,"x":1}])",
      R"([{"piece":"a","score":0},{"piece":"b","score":0},{"piece":"c","score":0,"score":1}])",
      PiecesJson({std::string(kMaxVocabularyPieceBytes + 1, 'x')}),
  };
  for (const std::string& text : texts) {
    const absl::Status status = Vocabulary::ParsePieces(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
    EXPECT_THAT(std::string(status.message()), HasSubstr("vocab.json")) << text.substr(0, 80);
  }
}

TEST(VocabularyTest, MutatedFilesNeverCrash) {
  const std::string good = PiecesJson({" ", "a", "b", "ab", "<0x41>"});
  int parsed = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string bad = good;
    for (uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      // One in four may be any byte; the others keep the file readable more often.
      const auto byte = static_cast<char>(random() % 4 == 0 ? random() : '0' + random() % 64);
      bad[random() % bad.size()] = byte;
    }
    const absl::StatusOr<Vocabulary> vocabulary = Vocabulary::ParsePieces(bad);
    if (!vocabulary.ok()) continue;
    ++parsed;
    for (const uint32_t id : vocabulary->Encode("ab A\xff")) EXPECT_LT(id, vocabulary->size()) << "seed " << seed;
  }
  EXPECT_GT(parsed, 50);
}

TEST(VocabularyTest, LoadTakesTheFileWhereThereIsOne) {
  TempDir dir;
  EXPECT_TRUE(Vocabulary::Load(dir.path(), 256)->is_bytes());
  EXPECT_EQ(Vocabulary::Load(dir.path(), 255).status().code(), absl::StatusCode::kInvalidArgument);
  testing::WriteFile(dir / "vocab.json", PiecesJson({"a"}));
  EXPECT_EQ(Vocabulary::Load(dir.path(), 4)->size(), 4u);
  EXPECT_EQ(Vocabulary::Load(dir.path(), 4)->longest_piece_bytes(), 1u);
  EXPECT_THAT(std::string(Vocabulary::Load(dir.path(), 3).status().message()), HasSubstr("vocab.json"));
  testing::WriteFile(dir / "vocab.json", "no");
  EXPECT_THAT(std::string(Vocabulary::Load(dir.path(), 4).status().message()), HasSubstr(dir.path()));
}

TEST(VocabularyTest, StoriesPiecesEncodeAsPublished) {
  const std::string dir = testing::StoriesDir();
  if (dir.empty()) GTEST_SKIP() << "stories260k is not here";
  const absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Load(dir, 512);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_LE(std::string_view("Once upon a time").size(), 5 * vocabulary->longest_piece_bytes());
  EXPECT_THAT(vocabulary->Encode("Once upon a time"), ElementsAre(1, 403, 407, 261, 378));
  for (const char* text :
       {"Once upon a time", " two  spaces ", "line\nline", "caf\xc3\xa9 \xf0\x9f\x98\x80", "\xff\xfe", "<s>"}) {
    EXPECT_EQ(vocabulary->Decode(vocabulary->Encode(text)), text);
  }
}

}  // namespace
}  // namespace kvmesh
