// What travels in front of every copy of a block that leaves a pool, and how it is verified.
#ifndef KVMESH_KVSTORE_BLOCK_BLOCK_HEADER_H_
#define KVMESH_KVSTORE_BLOCK_BLOCK_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/layout.h"
#include "kernels/shard.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/lossy_formats.h"

namespace kvmesh {

// First 8 bytes of SHA-256 over u32 LE format, layers, kv heads, block tokens, head dim, then u64 LE token, head, kv
// and layer stride and block bytes; then, with MLA or descales, u32 LE latent dim and scale group, u64 LE scale offset
// and scale token stride. Two workers exchange blocks only when equal.
using LayoutFingerprint = FixedBytes<struct LayoutFingerprintTag, 8>;
LayoutFingerprint ComputeLayoutFingerprint(const BlockLayout& layout);

struct BlockHeader {
  RootKey root;
  BlockKey key;        // in the chain; of another group: of the chain's block that it stands beside
  BlockKey parent;     // of `key` in the chain; block 0: the root
  uint32_t group = 0;  // of layers with one attention span; 0 is the chain
  ShardRange shard;
  uint64_t start_position = 0;  // of the block's first token
  LayoutFingerprint layout;
  KvFormat format = KvFormat::kUnspecified;
  LossyFormats lossy_formats;
  absl::Time seal_time;  // kept in whole microseconds
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;

  friend bool operator==(const BlockHeader&, const BlockHeader&) = default;
};

// The key that the block of a header is found under: ComputeGroupKey of its key and group.
BlockKey FoundUnder(const BlockHeader& header);

// On wire and disk, little endian: magic u32, version u16, header length u16, root 16, key 16, parent 16, group u32,
// shard 4 x u16, start position u64, layout fingerprint 8, format u32, lossy formats u32, seal time u64 (microseconds
// since the epoch), payload length u64, checksum u64.
inline constexpr uint32_t kBlockHeaderMagic = 0x424d564b;  // "KVMB"
inline constexpr uint16_t kBlockHeaderVersion = 1;
inline constexpr size_t kBlockHeaderBytes = 116;
static_assert(kBlockHeaderBytes == 4 + 2 + 2 + 16 * 3 + 4 + 8 + 8 + 8 + 4 + 4 + 8 + 8 + 8);

void EncodeBlockHeader(const BlockHeader& header, std::span<std::byte, kBlockHeaderBytes> out);

// DATA_LOSS naming the field: short, wrong magic, unknown version, wrong length, a format value that LossyFormats can't
// hold (32 or more). Bytes after the header are not looked at. Does not verify the checksum.
absl::StatusOr<BlockHeader> DecodeBlockHeader(std::span<const std::byte> bytes);

// BlockChecksum (kernels/block_checksum.h) over the payload and the encoded header without its checksum field.
uint64_t ComputeChecksum(const BlockHeader& header, std::span<const std::byte> payload);

// OK when `payload` is what `header` sealed. DATA_LOSS naming what differs: payload length or checksum.
absl::Status VerifyBlock(const BlockHeader& header, std::span<const std::byte> payload);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_BLOCK_HEADER_H_
