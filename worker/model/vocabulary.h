// Text to token ids and back.
#ifndef KVMESH_WORKER_MODEL_VOCABULARY_H_
#define KVMESH_WORKER_MODEL_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Limits of a vocab.json.
inline constexpr size_t kMaxVocabularyFileBytes = size_t{128} << 20;
inline constexpr size_t kMaxVocabularyPieceBytes = 1024;

// Immutable; thread safe. Two kinds:
//
// Bytes: id = byte. No marks: encoded text has no BOS.
//
// Pieces: an array of {"piece", "score"} in id order, in the manner of SentencePiece's BPE. Ids 0, 1, 2 are unknown,
// BOS and EOS; pieces "<0xNN>" are single bytes. A space is written " " or "▁" in pieces. Encoded text starts with BOS;
// then the text, with a space put before it, is cut into UTF-8 characters, and the adjacent pair whose joined piece has
// the highest score is merged (the leftmost among equals) until no joined piece exists. A character that is no piece
// becomes its bytes (unknown, where the vocabulary lacks byte pieces), as do bytes that are not UTF-8.
class Vocabulary {
 public:
  // The vocabulary whose ids are bytes.
  static Vocabulary Bytes();

  // INVALID_ARGUMENT: not JSON, not an array of {piece, score}, fewer than the three special pieces, a piece that is
  // too long; names the index.
  static absl::StatusOr<Vocabulary> ParsePieces(absl::string_view json);

  // `dir`/vocab.json where there is one, else Bytes(). Errors of ParsePieces and of reading name the file;
  // INVALID_ARGUMENT too when an id reaches `vocab_size`.
  static absl::StatusOr<Vocabulary> Load(const std::string& dir, int64_t vocab_size);

  // Any bytes are accepted. O(n log n).
  std::vector<uint32_t> Encode(absl::string_view text) const;

  // The bytes that one generated id stands for: nothing for special ids and ids beyond the vocabulary.
  absl::string_view Piece(uint32_t id) const;

  // The text of `ids`: their pieces in order, less the space that Encode puts after BOS where ids[0] is BOS.
  // Decode(Encode(text)) == text, unless a character became unknown.
  std::string Decode(std::span<const uint32_t> ids) const;

  // Bytes of text that one id stands for at most.
  size_t longest_piece_bytes() const;

  // Number of ids.
  size_t size() const { return texts_.size(); }
  bool is_bytes() const { return !has_pieces_; }

 private:
  static constexpr uint32_t kUnknownId = 0;
  static constexpr uint32_t kBosId = 1;
  static constexpr uint32_t kEosId = 2;

  Vocabulary() = default;
  // Appends the id of a piece of `text`, or those of its bytes.
  void AppendUnit(absl::string_view text, std::vector<uint32_t>& units) const;
  std::vector<uint32_t> Merge(std::vector<uint32_t> units) const;
  // The id of the joined piece of two adjacent units.
  std::optional<uint32_t> Joined(uint32_t left, uint32_t right) const;

  bool has_pieces_ = false;
  std::vector<std::string> texts_;                     // by id: the bytes that it stands for
  std::vector<float> scores_;                          // by id
  absl::flat_hash_map<std::string, uint32_t> ids_;     // pieces that text can become: neither special nor bytes
  std::array<std::optional<uint32_t>, 256> byte_ids_;  // by byte
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_VOCABULARY_H_
