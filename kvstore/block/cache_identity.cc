#include "kvstore/block/cache_identity.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstore/block/attention_policy.h"
#include "kvstore/block/secrets.h"
#include "kvstore/block/utf8.h"

namespace kvmesh {
namespace {

enum Tag : uint16_t {
  kTenant = 1,
  kCacheSalt = 2,
  kModel = 3,
  kModelRevision = 4,
  kAdapter = 5,
  kAdapterRevision = 6,
  kNumerics = 7,
  kBlockTokens = 8,
  kRope = 9,
  kAttentionPolicy = 10,
  kExtra = 11,
};

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("identity.", field, ": ", what));
}

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  if (text.size() > kMaxIdentityTextBytes) {
    return Invalid(field, absl::StrCat(text.size(), " bytes, the limit is ", kMaxIdentityTextBytes));
  }
  if (!IsValidUtf8(text)) return Invalid(field, "not UTF-8");
  return absl::OkStatus();
}

absl::Status CheckRope(const RopeIdentity& rope) {
  if (!std::isfinite(rope.theta) || rope.theta <= 0) return Invalid("rope.theta", "must be finite and above 0");
  if (rope.rotary_dim < 1) return Invalid("rope.rotary_dim", "must be at least 1");
  return CheckText("rope.scaling", rope.scaling);
}

absl::Status CheckExtra(const std::map<std::string, std::string>& extra) {
  if (extra.size() > kMaxIdentityExtras) {
    return Invalid("extra", absl::StrCat(extra.size(), " names, the limit is ", kMaxIdentityExtras));
  }
  for (const auto& [name, value] : extra) {
    const bool canonical = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    });
    if (!canonical) return Invalid("extra", "a name does not match [a-z0-9_.-]+");
    if (name.size() + 1 + value.size() > kMaxIdentityTextBytes) {
      return Invalid("extra", absl::StrCat("a `name=value` of ", name.size() + 1 + value.size(),
                                           " bytes, the limit is ", kMaxIdentityTextBytes));
    }
    KVMESH_RETURN_IF_ERROR(CheckText(absl::StrCat("extra.", name), value));
  }
  return absl::OkStatus();
}

void AppendField(Tag tag, absl::string_view value, std::string& out) {
  AppendLittleEndian(static_cast<uint16_t>(tag), out);
  AppendLittleEndian(static_cast<uint32_t>(value.size()), out);
  out.append(value.data(), value.size());
}

void AppendText(Tag tag, absl::string_view value, std::string& out) {
  if (!value.empty()) AppendField(tag, value, out);
}

}  // namespace

absl::Status ValidateIdentity(const CacheIdentity& identity) {
  const std::pair<absl::string_view, const std::string*> texts[] = {
      {"tenant", &identity.tenant},     {"cache_salt", &identity.cache_salt},
      {"model", &identity.model},       {"model_revision", &identity.model_revision},
      {"adapter", &identity.adapter},   {"adapter_revision", &identity.adapter_revision},
      {"numerics", &identity.numerics},
  };
  for (const auto& [field, text] : texts) KVMESH_RETURN_IF_ERROR(CheckText(field, *text));
  if (identity.block_tokens < kMinBlockTokens || identity.block_tokens > kMaxIdentityBlockTokens) {
    return Invalid("block_tokens",
                   absl::StrCat(identity.block_tokens, ", must be ", kMinBlockTokens, " to ", kMaxIdentityBlockTokens));
  }
  if (identity.rope.has_value()) KVMESH_RETURN_IF_ERROR(CheckRope(*identity.rope));
  const absl::Status policy = ParseAttentionPolicy(identity.attention_policy).status();
  if (!policy.ok()) return absl::InvalidArgumentError(absl::StrCat("identity.", policy.message()));
  return CheckExtra(identity.extra);
}

std::string CanonicalBytes(const CacheIdentity& identity) {
  std::string out;
  AppendText(kTenant, identity.tenant, out);
  AppendText(kCacheSalt, identity.cache_salt, out);
  AppendText(kModel, identity.model, out);
  AppendText(kModelRevision, identity.model_revision, out);
  AppendText(kAdapter, identity.adapter, out);
  AppendText(kAdapterRevision, identity.adapter_revision, out);
  AppendText(kNumerics, identity.numerics, out);

  std::string value;
  AppendLittleEndian(identity.block_tokens, value);
  AppendField(kBlockTokens, value, out);

  if (identity.rope.has_value()) {
    value.clear();
    AppendLittleEndian(std::bit_cast<uint64_t>(identity.rope->theta), value);
    AppendLittleEndian(identity.rope->rotary_dim, value);
    AppendLittleEndian(static_cast<uint8_t>(identity.rope->interleaved ? 1 : 0), value);
    value.append(identity.rope->scaling);
    AppendField(kRope, value, out);
  }
  if (identity.attention_policy != kFullAttention) AppendText(kAttentionPolicy, identity.attention_policy, out);

  // The map orders names; the canonical order is that of whole `name=value` strings ("a-b=" comes before "a=").
  std::vector<std::string> extras;
  extras.reserve(identity.extra.size());
  for (const auto& [name, text] : identity.extra) extras.push_back(absl::StrCat(name, "=", text));
  std::sort(extras.begin(), extras.end());
  for (const std::string& extra : extras) AppendField(kExtra, extra, out);
  return out;
}

Fingerprint ComputeFingerprint(const CacheIdentity& identity) {
  return Fingerprint{Sha256(CanonicalBytes(identity)).bytes};
}

}  // namespace kvmesh
