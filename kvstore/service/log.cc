#include "kvstore/service/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {
namespace {

std::atomic<LogLevel> min_level{LogLevel::kInfo};

absl::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      break;
  }
  return "error";
}

bool IsPlain(absl::string_view value) {
  for (const char c : value) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        absl::string_view("_-./:@+,%[]").find(c) == absl::string_view::npos) {
      return false;
    }
  }
  return !value.empty();
}

void AppendQuoted(absl::string_view value, std::string& out) {
  out += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out += c;
    }
  }
  out += '"';
}

void AppendPair(absl::string_view key, absl::string_view value, std::string& out) {
  if (!out.empty()) out += ' ';
  absl::StrAppend(&out, key, "=");
  const bool cut = value.size() > kMaxLogValueBytes;
  const absl::string_view kept = value.substr(0, kMaxLogValueBytes);
  if (!cut && IsPlain(kept)) {
    absl::StrAppend(&out, kept);
  } else {
    AppendQuoted(cut ? absl::StrCat(kept, "...") : std::string(kept), out);
  }
}

// One writer at a time, so that a line that needs two writes stays whole.
Mutex& WriteMutex() {
  static Mutex* const mutex = new Mutex();
  return *mutex;
}

}  // namespace

void SetMinLogLevel(LogLevel level) { min_level.store(level, std::memory_order_relaxed); }

std::string FormatLogLine(absl::Time time, LogLevel level, absl::string_view component, absl::string_view message,
                          std::initializer_list<LogField> fields) {
  std::string line;
  AppendPair("time", absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone()), line);
  AppendPair("level", LevelName(level), line);
  AppendPair("component", component, line);
  AppendPair("msg", message, line);
  for (const LogField& field : fields) AppendPair(field.key, field.value, line);
  line += '\n';
  return line;
}

void Log(LogLevel level, absl::string_view component, absl::string_view message,
         std::initializer_list<LogField> fields) {
  if (level < min_level.load(std::memory_order_relaxed)) return;
  const std::string line = FormatLogLine(absl::Now(), level, component, message, fields);
  MutexLock lock(WriteMutex());
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t got = write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    written += static_cast<size_t>(got);
  }
}

}  // namespace kvmesh
