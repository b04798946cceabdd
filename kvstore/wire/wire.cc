#include "kvstore/wire/wire.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

absl::Status CheckKnown(const google::protobuf::Message& message, absl::string_view field) {
  const google::protobuf::UnknownFieldSet& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": unknown field ", unknown.field(0).number()));
}

}  // namespace

absl::Status CheckIdentitySize(const v1::CacheIdentity& proto) {
  const size_t size = proto.ByteSizeLong();
  if (size <= kMaxIdentityMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("identity: ", size, " bytes, the limit is ", kMaxIdentityMessageBytes));
}

absl::StatusOr<CacheIdentity> IdentityFromProto(const v1::CacheIdentity& proto) {
  KVMESH_RETURN_IF_ERROR(CheckIdentitySize(proto));
  KVMESH_RETURN_IF_ERROR(CheckKnown(proto, "identity"));
  CacheIdentity identity;
  identity.tenant = proto.tenant();
  identity.cache_salt = proto.cache_salt();
  identity.model = proto.model();
  identity.model_revision = proto.model_revision();
  identity.adapter = proto.adapter();
  identity.adapter_revision = proto.adapter_revision();
  identity.numerics = proto.numerics();
  identity.block_tokens = proto.block_tokens();
  if (proto.has_rope()) {
    KVMESH_RETURN_IF_ERROR(CheckKnown(proto.rope(), "identity.rope"));
    identity.rope = RopeIdentity{.theta = proto.rope().theta(),
                                 .rotary_dim = proto.rope().rotary_dim(),
                                 .interleaved = proto.rope().interleaved(),
                                 .scaling = proto.rope().scaling()};
  }
  identity.attention_policy = proto.attention_policy();
  for (const auto& extra : proto.extra()) {
    KVMESH_RETURN_IF_ERROR(CheckKnown(extra, "identity.extra"));
    if (!identity.extra.emplace(extra.name(), extra.value()).second) {
      return absl::InvalidArgumentError("identity.extra: a name stands twice");
    }
  }
  KVMESH_RETURN_IF_ERROR(ValidateIdentity(identity));
  return identity;
}

void IdentityToProto(const CacheIdentity& identity, v1::CacheIdentity& proto) {
  proto.Clear();
  proto.set_tenant(identity.tenant);
  proto.set_cache_salt(identity.cache_salt);
  proto.set_model(identity.model);
  proto.set_model_revision(identity.model_revision);
  proto.set_adapter(identity.adapter);
  proto.set_adapter_revision(identity.adapter_revision);
  proto.set_numerics(identity.numerics);
  proto.set_block_tokens(identity.block_tokens);
  if (identity.rope) {
    proto.mutable_rope()->set_theta(identity.rope->theta);
    proto.mutable_rope()->set_rotary_dim(identity.rope->rotary_dim);
    proto.mutable_rope()->set_interleaved(identity.rope->interleaved);
    proto.mutable_rope()->set_scaling(identity.rope->scaling);
  }
  proto.set_attention_policy(identity.attention_policy);
  for (const auto& [name, value] : identity.extra) {
    auto* extra = proto.add_extra();
    extra->set_name(name);
    extra->set_value(value);
  }
}

absl::StatusOr<std::span<const BlockKey>> KeysFromBytes(absl::string_view bytes, absl::string_view field) {
  static_assert(sizeof(BlockKey) == BlockKey::kSize && alignof(BlockKey) == 1);
  if (bytes.size() % BlockKey::kSize != 0) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", bytes.size(), " bytes, must be a multiple of 16"));
  }
  const size_t count = bytes.size() / BlockKey::kSize;
  if (count > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", count, " keys, the limit is ", kMaxPromptTokens));
  }
  return std::span(reinterpret_cast<const BlockKey*>(bytes.data()), count);
}

absl::string_view KeysToBytes(std::span<const BlockKey> keys) {
  return {reinterpret_cast<const char*>(keys.data()), keys.size() * BlockKey::kSize};
}

absl::Status CheckTokenCount(uint64_t count, absl::string_view field) {
  if (count == 0) return absl::InvalidArgumentError(absl::StrCat(field, ": empty, at least 1 is needed"));
  if (count > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", count, " tokens, the limit is ", kMaxPromptTokens));
  }
  return absl::OkStatus();
}

absl::Status WrongLength(absl::string_view field, size_t got, size_t want) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", got, " bytes, must be ", want));
}

}  // namespace kvmesh
