#include "kvstore/block/attention_policy.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvmesh {
namespace {

// Takes a decimal u32 without leading zeros off the front of `text`.
bool ConsumeDecimal(absl::string_view& text, uint32_t& value) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  if (digits == 0 || (digits > 1 && text[0] == '0')) return false;
  if (!absl::SimpleAtoi(text.substr(0, digits), &value)) return false;
  text.remove_prefix(digits);
  return true;
}

}  // namespace

absl::StatusOr<StreamingPolicy> ParseAttentionPolicy(absl::string_view text) {
  if (text.empty() || text == kFullAttention) return StreamingPolicy{};
  uint32_t sinks = 0;
  uint32_t window = 0;
  if (absl::ConsumePrefix(&text, "sinks=") && ConsumeDecimal(text, sinks) && absl::ConsumePrefix(&text, ",window=") &&
      ConsumeDecimal(text, window) && text.empty() && window >= 1) {
    return StreamingPolicy{.sinks = sinks, .window = window};
  }
  return absl::InvalidArgumentError(
      "attention_policy: must be `full` or `sinks=S,window=W` in decimal without leading zeros, both below 2^32, W at "
      "least 1");
}

std::string AttentionPolicyText(const StreamingPolicy& policy) {
  return policy.streams() ? absl::StrCat("sinks=", policy.sinks, ",window=", policy.window) : "";
}

}  // namespace kvmesh
