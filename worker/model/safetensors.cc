#include "worker/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/element.h"
#include "worker/model/strict_json.h"

namespace kvmesh {
namespace {

constexpr size_t kLengthBytes = 8;

struct TypeInfo {
  const char* name;
  TensorType type;
  int64_t bytes;
  KvFormat element;
};
constexpr TypeInfo kTypes[] = {
    {"F32", TensorType::kF32, 4, KvFormat::kF32},
    {"F16", TensorType::kF16, 2, KvFormat::kF16},
    {"BF16", TensorType::kBf16, 2, KvFormat::kBf16},
};

const TypeInfo& InfoOf(TensorType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeInfo& info) { return info.type == type; });
}

// One header entry; errors say what is wrong without naming file or tensor. `data` is what follows the header.
absl::StatusOr<TensorView> ParseEntry(const nlohmann::json& entry, std::span<const std::byte> data) {
  if (!entry.is_object()) return absl::InvalidArgumentError("not an object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(field)) return absl::InvalidArgumentError(absl::StrCat("no ", field));
  }
  if (entry.size() != 3) return absl::InvalidArgumentError("unknown field");

  TensorView out;
  const nlohmann::json& dtype = entry["dtype"];
  const TypeInfo* info =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeInfo& known) { return dtype == known.name; });
  if (info == std::end(kTypes)) return absl::InvalidArgumentError("dtype is not F32, F16 or BF16");
  out.type = info->type;

  const nlohmann::json& shape = entry["shape"];
  if (!shape.is_array() || shape.size() > kMaxSafetensorsRank) {
    return absl::InvalidArgumentError(absl::StrCat("shape is not an array of at most ", kMaxSafetensorsRank));
  }
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
  int64_t elements = 1;
  for (const nlohmann::json& dimension : shape) {
    const std::optional<int64_t> size = JsonCount(dimension, kMaxElements);
    if (!size || (*size > 0 && elements > kMaxElements / *size)) {
      return absl::InvalidArgumentError("shape has a dimension out of range");
    }
    out.shape.push_back(*size);
    elements *= *size;
  }

  const nlohmann::json& offsets = entry["data_offsets"];
  const bool pair = offsets.is_array() && offsets.size() == 2;
  const auto limit = static_cast<int64_t>(data.size());
  const std::optional<int64_t> begin = pair ? JsonCount(offsets[0], limit) : std::nullopt;
  const std::optional<int64_t> end = pair ? JsonCount(offsets[1], limit) : std::nullopt;
  if (!begin || !end || *begin > *end) return absl::InvalidArgumentError("data_offsets are not a range in the file");
  if (*end - *begin != elements * info->bytes) {
    return absl::InvalidArgumentError("data_offsets disagree with shape and dtype");
  }
  out.bytes = data.subspan(static_cast<size_t>(*begin), static_cast<size_t>(*end - *begin));
  return out;
}

// Checks that the tensors' ranges cover `data` without overlap or gap.
absl::Status CheckCover(const std::map<std::string, TensorView>& tensors, std::span<const std::byte> data) {
  std::vector<std::pair<const std::byte*, const std::string*>> order;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.bytes.empty()) order.emplace_back(tensor.bytes.data(), &name);
  }
  std::sort(order.begin(), order.end());
  const std::byte* covered = data.data();
  for (const auto& [begin, name] : order) {
    if (begin < covered) return absl::InvalidArgumentError(absl::StrCat("tensor ", *name, ": overlaps another tensor"));
    if (begin > covered) return absl::InvalidArgumentError(absl::StrCat("tensor ", *name, ": unused bytes before it"));
    covered = begin + tensors.at(*name).bytes.size();
  }
  if (covered != data.data() + data.size()) return absl::InvalidArgumentError("unused bytes at the end");
  return absl::OkStatus();
}

}  // namespace

int64_t TensorView::elements() const {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

std::vector<float> TensorView::ToFloat() const {
  std::vector<float> out(static_cast<size_t>(elements()));
  const KvFormat element = InfoOf(type).element;
  for (size_t i = 0; i < out.size(); ++i) out[i] = LoadElement(bytes.data(), static_cast<int64_t>(i), element);
  return out;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile(path));
  KVMESH_RETURN_IF_ERROR(out->Map());
  const absl::Status parsed = out->ParseHeader();
  if (!parsed.ok()) return absl::Status(parsed.code(), absl::StrCat(path, ": ", parsed.message()));
  return out;
}

SafetensorsFile::~SafetensorsFile() {
  if (!contents_.empty()) munmap(const_cast<std::byte*>(contents_.data()), contents_.size());
}

absl::Status SafetensorsFile::Map() {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return absl::NotFoundError(absl::StrCat(path_, ": no such file"));
  if (fd < 0) return absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
  struct stat info;
  absl::Status status;
  if (fstat(fd, &info) != 0) {
    status = absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat(path_, ": not a regular file"));
  } else if (info.st_size > 0) {
    const auto size = static_cast<size_t>(info.st_size);
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      status = absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
    } else {
      contents_ = {static_cast<const std::byte*>(address), size};
    }
  }
  close(fd);
  return status;
}

absl::Status SafetensorsFile::ParseHeader() {
  if (contents_.size() < kLengthBytes) return absl::InvalidArgumentError("shorter than the header length");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(contents_[i]) << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes) return absl::InvalidArgumentError("header is longer than the limit");
  if (length > contents_.size() - kLengthBytes) return absl::InvalidArgumentError("header is longer than the file");

  const absl::string_view text(reinterpret_cast<const char*>(contents_.data()) + kLengthBytes, length);
  absl::StatusOr<nlohmann::json> header = ParseStrictJson(text, "header");
  if (!header.ok()) return header.status();
  if (!header->is_object()) return absl::InvalidArgumentError("header is not an object");
  if (header->size() > kMaxSafetensorsTensors) return absl::InvalidArgumentError("more tensors than the limit");

  const std::span<const std::byte> data = contents_.subspan(kLengthBytes + length);
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<TensorView> tensor = ParseEntry(entry, data);
    if (!tensor.ok()) return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": ", tensor.status().message()));
    tensors_.emplace(name, *std::move(tensor));
  }
  return CheckCover(tensors_, data);
}

absl::StatusOr<TensorView> SafetensorsFile::Tensor(absl::string_view name, const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) return absl::InvalidArgumentError(absl::StrCat(path_, ": no tensor ", name));
  if (found->second.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", name, ": shape [",
                                                   absl::StrJoin(found->second.shape, ", "), "] instead of [",
                                                   absl::StrJoin(shape, ", "), "]"));
  }
  return found->second;
}

}  // namespace kvmesh
