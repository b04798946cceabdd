// Structured logging: one line per event on standard error, `key=value` pairs that both people and log stores read.
//
//   Log(LogLevel::kInfo, "worker", "listening", {{"address", address}, {"threads", 8}});
//   time=2024-06-01T12:00:00.123456Z level=info component=worker msg=listening address=[::]:50052 threads=8
#ifndef KVMESH_KVSTORE_SERVICE_LOG_H_
#define KVMESH_KVSTORE_SERVICE_LOG_H_

#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvmesh {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Longer values are cut, so that no line grows without bound.
inline constexpr size_t kMaxLogValueBytes = 2048;

// A pair on a log line. `key`: lower-case words joined by underscores. `value`: text or a number.
struct LogField {
  LogField(absl::string_view key, const absl::AlphaNum& value) : key(key), value(value.Piece()) {}
  absl::string_view key;
  std::string value;
};

// Writes one line to standard error with one write. Thread safe. Errors of the write are ignored.
void Log(LogLevel level, absl::string_view component, absl::string_view message,
         std::initializer_list<LogField> fields = {});

// Events below `level` are dropped; kInfo at first. Thread safe.
void SetMinLogLevel(LogLevel level);

// The line that Log writes, newline included. Times are UTC in RFC 3339 with microseconds. Values that hold anything
// but plain characters are quoted, with \" \\ \n \r \t and \xNN (two hex digits) inside.
std::string FormatLogLine(absl::Time time, LogLevel level, absl::string_view component, absl::string_view message,
                          std::initializer_list<LogField> fields);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_LOG_H_
