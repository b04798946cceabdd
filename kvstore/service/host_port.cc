#include "kvstore/service/host_port.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

bool IsHostChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' || c == '%';
}

bool IsHost(absl::string_view host, bool bracketed) {
  return !host.empty() &&
         std::all_of(host.begin(), host.end(), [&](char c) { return IsHostChar(c) || (bracketed && c == ':'); });
}

bool IsPort(absl::string_view port) {
  return !port.empty() && port.size() <= 5 &&
         std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != absl::string_view::npos && IsPort(text.substr(colon + 1)) &&
      absl::SimpleAtoi(text.substr(colon + 1), &port) && port <= 65535) {
    absl::string_view host = text.substr(0, colon);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (bracketed) host = host.substr(1, host.size() - 2);
    if (IsHost(host, bracketed)) return HostPort{std::string(host), static_cast<uint16_t>(port)};
  }
  return absl::InvalidArgumentError(absl::StrCat("address `", text, "`: must be host:port or [v6]:port"));
}

}  // namespace kvmesh
