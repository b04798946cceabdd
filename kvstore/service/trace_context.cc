#include "kvstore/service/trace_context.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

constexpr char kMetadataKey[] = "traceparent";
constexpr size_t kVersion00Bytes = 55;  // 2 + 1 + 32 + 1 + 16 + 1 + 2
constexpr size_t kMaxTraceParentBytes = 256;

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZeros(absl::string_view text) { return text.find_first_not_of('0') == absl::string_view::npos; }

}  // namespace

bool IsValidTraceParent(absl::string_view text) {
  if (text.size() < kVersion00Bytes || text.size() > kMaxTraceParentBytes) return false;
  const absl::string_view version = text.substr(0, 2);
  const absl::string_view trace_id = text.substr(3, 32);
  const absl::string_view parent_id = text.substr(36, 16);
  const absl::string_view flags = text.substr(53, 2);
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  if (!IsLowerHex(version) || !IsLowerHex(trace_id) || !IsLowerHex(parent_id) || !IsLowerHex(flags)) return false;
  if (version == "ff" || IsZeros(trace_id) || IsZeros(parent_id)) return false;
  if (text.size() == kVersion00Bytes) return true;
  const absl::string_view rest = text.substr(kVersion00Bytes);
  return version != "00" && rest[0] == '-' &&
         std::all_of(rest.begin(), rest.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string TraceParent(const grpc::ServerContextBase& context) {
  const auto [first, last] = context.client_metadata().equal_range(kMetadataKey);
  if (first == last || std::next(first) != last) return "";
  const absl::string_view value(first->second.data(), first->second.size());
  return IsValidTraceParent(value) ? std::string(value) : "";
}

SlowCallLog::SlowCallLog(absl::string_view component, absl::string_view method, const grpc::ServerContextBase& context,
                         absl::Duration threshold, const Clock& clock)
    : component_(component),
      method_(method),
      threshold_(threshold),
      clock_(clock),
      start_(clock.Now()),
      trace_parent_(TraceParent(context)) {}

SlowCallLog::~SlowCallLog() {
  const absl::Duration took = clock_.Now() - start_;
  if (took < threshold_) return;
  Log(LogLevel::kWarning, component_, "slow call",
      {{"method", method_},
       {"ms", absl::StrFormat("%.3f", absl::ToDoubleMilliseconds(took))},
       {"status", absl::StatusCodeToString(status_.code())},
       {"traceparent", trace_parent_}});
}

grpc::Status SlowCallLog::Finish(const absl::Status& status) {
  status_ = status;
  return ToGrpcStatus(status);
}

}  // namespace kvmesh
