#include "worker/model/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/model/strict_json.h"

namespace kvmesh {
namespace {

constexpr char kSpaceMark[] = "\xe2\x96\x81";  // U+2581
constexpr uint32_t kFirstPieceId = 3;

// The byte that a piece "<0xNN>" stands for.
std::optional<uint8_t> BytePiece(absl::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'A' + 10; };
  for (const char c : piece.substr(3, 2)) {
    if (!absl::ascii_isdigit(c) && !(c >= 'A' && c <= 'F')) return std::nullopt;
  }
  return static_cast<uint8_t>(digit(piece[3]) * 16 + digit(piece[4]));
}

// Bytes of the character at the front of `text`; 1 where the bytes are not UTF-8. REQUIRES: not empty.
size_t CharacterBytes(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t length = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 1;
  if (length > text.size()) return 1;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) return 1;
  }
  return length;
}

// A possible merge. A later change of either side makes it stale.
struct Candidate {
  float score;
  size_t left, right;              // indexes of units
  uint32_t left_id, right_id, id;  // what they were when it was found, and what they become

  // The queue's top is the best score, then the leftmost.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }
};

}  // namespace

Vocabulary Vocabulary::Bytes() {
  Vocabulary out;
  for (int byte = 0; byte < 256; ++byte) out.texts_.emplace_back(1, static_cast<char>(byte));
  return out;
}

absl::StatusOr<Vocabulary> Vocabulary::ParsePieces(absl::string_view json) {
  absl::StatusOr<nlohmann::json> parsed = ParseStrictJson(json, "vocab.json");
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_array() || parsed->size() < kFirstPieceId) {
    return absl::InvalidArgumentError("vocab.json: not an array that starts with unknown, BOS and EOS");
  }
  Vocabulary out;
  out.has_pieces_ = true;
  for (const nlohmann::json& entry : *parsed) {
    const auto id = static_cast<uint32_t>(out.texts_.size());
    const auto bad = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("vocab.json: entry ", id, ": ", what));
    };
    if (!entry.is_object() || entry.size() != 2 || !entry.contains("piece") || !entry.contains("score") ||
        !entry["piece"].is_string() || !entry["score"].is_number()) {
      return bad("not {piece: text, score: number}");
    }
    const std::string& piece = entry["piece"].get_ref<const std::string&>();
    const float score = entry["score"].get<float>();
    if (piece.size() > kMaxVocabularyPieceBytes) {
      return bad(absl::StrCat("piece is longer than ", kMaxVocabularyPieceBytes, " bytes"));
    }
    if (!std::isfinite(score)) return bad("score is out of range");
    out.scores_.push_back(score);
    if (id < kFirstPieceId) {
      out.texts_.emplace_back();
    } else if (const std::optional<uint8_t> byte = BytePiece(piece)) {
      out.texts_.emplace_back(1, static_cast<char>(*byte));
      out.byte_ids_[*byte] = id;
    } else {
      out.texts_.push_back(absl::StrReplaceAll(piece, {{kSpaceMark, " "}}));
      // Of equal pieces the first one is used.
      if (!out.texts_.back().empty()) out.ids_.emplace(out.texts_.back(), id);
    }
  }
  return out;
}

absl::StatusOr<Vocabulary> Vocabulary::Load(const std::string& dir, int64_t vocab_size) {
  const std::string path = absl::StrCat(dir, "/vocab.json");
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxVocabularyFileBytes);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  absl::StatusOr<Vocabulary> out = text.ok() ? ParsePieces(*text) : Bytes();
  if (!out.ok()) return absl::Status(out.status().code(), absl::StrCat(dir, ": ", out.status().message()));
  if (out->size() > static_cast<size_t>(vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", out->size(), " ids exceed vocab_size ", vocab_size));
  }
  return out;
}

std::vector<uint32_t> Vocabulary::Encode(absl::string_view text) const {
  std::vector<uint32_t> units;
  if (is_bytes()) {
    for (const char c : text) units.push_back(static_cast<uint8_t>(c));
    return units;
  }
  if (!text.empty()) AppendUnit(" ", units);
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    AppendUnit(text.substr(0, length), units);
    text.remove_prefix(length);
  }
  units = Merge(std::move(units));
  units.insert(units.begin(), kBosId);
  return units;
}

void Vocabulary::AppendUnit(absl::string_view text, std::vector<uint32_t>& units) const {
  const auto found = ids_.find(text);
  if (found != ids_.end()) {
    units.push_back(found->second);
    return;
  }
  for (const char c : text) units.push_back(byte_ids_[static_cast<uint8_t>(c)].value_or(kUnknownId));
}

std::optional<uint32_t> Vocabulary::Joined(uint32_t left, uint32_t right) const {
  if (texts_[left].empty() || texts_[right].empty()) return std::nullopt;
  const auto found = ids_.find(absl::StrCat(texts_[left], texts_[right]));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

// The units are a linked list over their first indexes; merging keeps the left index and unlinks the right one.
std::vector<uint32_t> Vocabulary::Merge(std::vector<uint32_t> units) const {
  constexpr size_t kNone = SIZE_MAX;
  const size_t count = units.size();
  std::vector<size_t> next(count), previous(count);
  std::vector<bool> merged_away(count);
  std::priority_queue<Candidate> queue;
  const auto consider = [&](size_t left, size_t right) {
    if (left == kNone || right == kNone) return;
    if (const std::optional<uint32_t> id = Joined(units[left], units[right])) {
      queue.push({scores_[*id], left, right, units[left], units[right], *id});
    }
  };
  for (size_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
    consider(previous[i], i);
  }
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const bool current = !merged_away[best.left] && !merged_away[best.right] && next[best.left] == best.right &&
                         units[best.left] == best.left_id && units[best.right] == best.right_id;
    if (!current) continue;
    units[best.left] = best.id;
    merged_away[best.right] = true;
    next[best.left] = next[best.right];
    if (next[best.left] != kNone) previous[next[best.left]] = best.left;
    consider(previous[best.left], best.left);
    consider(best.left, next[best.left]);
  }
  std::vector<uint32_t> out;
  for (size_t i = 0; i < count; ++i) {
    if (!merged_away[i]) out.push_back(units[i]);
  }
  return out;
}

absl::string_view Vocabulary::Piece(uint32_t id) const {
  return id < texts_.size() ? absl::string_view(texts_[id]) : absl::string_view();
}

std::string Vocabulary::Decode(std::span<const uint32_t> ids) const {
  std::string out;
  for (const uint32_t id : ids) absl::StrAppend(&out, Piece(id));
  const bool starts_text = has_pieces_ && !ids.empty() && ids[0] == kBosId;
  if (starts_text && !out.empty() && out[0] == ' ') out.erase(0, 1);
  return out;
}

size_t Vocabulary::longest_piece_bytes() const {
  size_t longest = 1;
  for (const std::string& text : texts_) longest = std::max(longest, text.size());
  return longest;
}

}  // namespace kvmesh
