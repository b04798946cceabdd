#include "kvstore/block/block_header.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/block_checksum.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {
namespace {

// Writes little-endian fields one after the other into a buffer that is known to be large enough.
class FieldWriter {
 public:
  explicit FieldWriter(std::byte* out) : out_(out) {}

  template <class T>
  void Integer(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i) *out_++ = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
  template <class Tag, size_t N>
  void Bytes(const FixedBytes<Tag, N>& value) {
    std::memcpy(out_, value.bytes.data(), N);
    out_ += N;
  }

 private:
  std::byte* out_;
};

// The mirror of FieldWriter.
class FieldReader {
 public:
  explicit FieldReader(const std::byte* in) : in_(in) {}

  template <class T>
  T Integer() {
    static_assert(std::is_unsigned_v<T>);
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(*in_++) << (8 * i));
    return value;
  }
  template <class Tag, size_t N>
  void Bytes(FixedBytes<Tag, N>& value) {
    std::memcpy(value.bytes.data(), in_, N);
    in_ += N;
  }

 private:
  const std::byte* in_;
};

constexpr size_t kChecksumBytes = sizeof(uint64_t);  // the last field

}  // namespace

LayoutFingerprint ComputeLayoutFingerprint(const BlockLayout& layout) {
  std::string bytes;
  AppendLittleEndian(static_cast<uint32_t>(layout.format), bytes);
  for (int32_t dimension : {layout.layers, layout.kv_heads, layout.block_tokens, layout.head_dim}) {
    AppendLittleEndian(static_cast<uint32_t>(dimension), bytes);
  }
  for (int64_t stride :
       {layout.token_stride, layout.head_stride, layout.kv_stride, layout.layer_stride, layout.block_bytes}) {
    AppendLittleEndian(static_cast<uint64_t>(stride), bytes);
  }
  if (layout.mla() || layout.scale_group > 0) {
    AppendLittleEndian(static_cast<uint32_t>(layout.latent_dim), bytes);
    AppendLittleEndian(static_cast<uint32_t>(layout.scale_group), bytes);
    AppendLittleEndian(static_cast<uint64_t>(layout.scale_offset), bytes);
    AppendLittleEndian(static_cast<uint64_t>(layout.scale_token_stride), bytes);
  }
  const Digest32 digest = Sha256(bytes);
  LayoutFingerprint fingerprint;
  std::memcpy(fingerprint.bytes.data(), digest.bytes.data(), fingerprint.bytes.size());
  return fingerprint;
}

BlockKey FoundUnder(const BlockHeader& header) { return ComputeGroupKey(header.key, header.group); }

void EncodeBlockHeader(const BlockHeader& header, std::span<std::byte, kBlockHeaderBytes> out) {
  FieldWriter writer(out.data());
  writer.Integer(kBlockHeaderMagic);
  writer.Integer(kBlockHeaderVersion);
  writer.Integer(static_cast<uint16_t>(kBlockHeaderBytes));
  writer.Bytes(header.root);
  writer.Bytes(header.key);
  writer.Bytes(header.parent);
  writer.Integer(header.group);
  writer.Integer(header.shard.first_layer);
  writer.Integer(header.shard.layers);
  writer.Integer(header.shard.first_head);
  writer.Integer(header.shard.heads);
  writer.Integer(header.start_position);
  writer.Bytes(header.layout);
  writer.Integer(static_cast<uint32_t>(header.format));
  writer.Integer(header.lossy_formats.bits());
  writer.Integer(static_cast<uint64_t>(absl::ToUnixMicros(header.seal_time)));
  writer.Integer(header.payload_bytes);
  writer.Integer(header.checksum);
}

absl::StatusOr<BlockHeader> DecodeBlockHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kBlockHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("block header: ", bytes.size(), " bytes, shorter than ", kBlockHeaderBytes));
  }
  FieldReader reader(bytes.data());
  if (const auto magic = reader.Integer<uint32_t>(); magic != kBlockHeaderMagic) {
    return absl::DataLossError(absl::StrCat("block header: magic 0x", absl::Hex(magic, absl::kZeroPad8)));
  }
  if (const auto version = reader.Integer<uint16_t>(); version != kBlockHeaderVersion) {
    return absl::DataLossError(
        absl::StrCat("block header: version ", version, ", this build reads ", kBlockHeaderVersion));
  }
  if (const auto length = reader.Integer<uint16_t>(); length != kBlockHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("block header: header length ", length, ", version 1 has ", kBlockHeaderBytes));
  }
  BlockHeader header;
  reader.Bytes(header.root);
  reader.Bytes(header.key);
  reader.Bytes(header.parent);
  header.group = reader.Integer<uint32_t>();
  header.shard.first_layer = reader.Integer<uint16_t>();
  header.shard.layers = reader.Integer<uint16_t>();
  header.shard.first_head = reader.Integer<uint16_t>();
  header.shard.heads = reader.Integer<uint16_t>();
  header.start_position = reader.Integer<uint64_t>();
  reader.Bytes(header.layout);
  const auto format = reader.Integer<uint32_t>();
  if (format >= 32) return absl::DataLossError(absl::StrCat("block header: format ", format, ", must be below 32"));
  header.format = static_cast<KvFormat>(format);
  header.lossy_formats = LossyFormats(reader.Integer<uint32_t>());
  header.seal_time = absl::FromUnixMicros(static_cast<int64_t>(reader.Integer<uint64_t>()));
  header.payload_bytes = reader.Integer<uint64_t>();
  header.checksum = reader.Integer<uint64_t>();
  return header;
}

uint64_t ComputeChecksum(const BlockHeader& header, std::span<const std::byte> payload) {
  std::byte encoded[kBlockHeaderBytes];
  EncodeBlockHeader(header, encoded);
  return BlockChecksum(std::span<const std::byte>(encoded, kBlockHeaderBytes - kChecksumBytes), payload);
}

absl::Status VerifyBlock(const BlockHeader& header, std::span<const std::byte> payload) {
  if (payload.size() != header.payload_bytes) {
    return absl::DataLossError(absl::StrCat("block ", header.key.ToHex(), ": payload of ", payload.size(),
                                            " bytes, its header says ", header.payload_bytes));
  }
  if (const uint64_t checksum = ComputeChecksum(header, payload); checksum != header.checksum) {
    return absl::DataLossError(absl::StrCat("block ", header.key.ToHex(), ": checksum 0x",
                                            absl::Hex(checksum, absl::kZeroPad16), ", its header says 0x",
                                            absl::Hex(header.checksum, absl::kZeroPad16)));
  }
  return absl::OkStatus();
}

}  // namespace kvmesh
