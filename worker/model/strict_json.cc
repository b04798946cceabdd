#include "worker/model/strict_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

// Closes a descriptor at the end of a scope.
struct OwnedFd {
  int fd;
  ~OwnedFd() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view what) {
  using nlohmann::json;
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::string duplicate;
  bool too_deep = false;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    // What is left out is not built: no memory, no deep nesting.
    too_deep = too_deep || depth > kMaxJsonDepth;
    if (too_deep) return false;
    if (event == json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string& name = value.get_ref<const std::string&>();
      if (!names.back().insert(name).second) duplicate = name;
    }
    return true;
  };
  json out = json::parse(text.begin(), text.end(), check, /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError(absl::StrCat(what, ": nested too deeply"));
  if (out.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(what, ": not valid JSON"));
  if (!duplicate.empty()) return absl::InvalidArgumentError(absl::StrCat(what, ": duplicate name ", duplicate));
  return out;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  const OwnedFd file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0 && errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  struct stat info;
  if (file.fd < 0 || fstat(file.fd, &info) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": longer than the limit of ", max_bytes, " bytes"));
  }
  std::string out(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = read(file.fd, out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  out.resize(done);
  return out;
}

std::optional<int64_t> JsonCount(const nlohmann::json& value, int64_t max) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t count = value.get<uint64_t>();
  if (count > static_cast<uint64_t>(max)) return std::nullopt;
  return static_cast<int64_t>(count);
}

}  // namespace kvmesh
