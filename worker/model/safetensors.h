// Reader of safetensors files: named dense tensors behind a JSON header, mapped into memory and checked as a whole.
//
// File: u64 LE header length, the header (JSON object: name -> {dtype, shape, data_offsets}, optional "__metadata__"),
// then the tensors' bytes. Offsets count from the end of the header.
#ifndef KVMESH_WORKER_MODEL_SAFETENSORS_H_
#define KVMESH_WORKER_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Limits of a file that is read.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = uint64_t{64} << 20;
inline constexpr size_t kMaxSafetensorsTensors = 65536;
inline constexpr size_t kMaxSafetensorsRank = 8;

enum class TensorType { kF32, kF16, kBf16 };

// Row-major, dense. `bytes` points into the mapped file and may be unaligned.
struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  // Product of the shape; 1 for a scalar.
  int64_t elements() const;
  // All elements in order, converted to fp32 (exact).
  std::vector<float> ToFloat() const;
};

// An open file. Immutable; thread safe. The file must not be truncated while it is open (the mapping would fault).
class SafetensorsFile {
 public:
  // Maps `path` and checks all of it: header length, JSON, names (unique), types, shapes, and that the tensors' ranges
  // cover the data without overlap or gap and agree with shape and type.
  // NOT_FOUND: no such file. INVALID_ARGUMENT: malformed; names the file and, where there is one, the tensor.
  // UNAVAILABLE: the file can't be read.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // INVALID_ARGUMENT naming file and tensor: absent, or of another shape.
  absl::StatusOr<TensorView> Tensor(absl::string_view name, const std::vector<int64_t>& shape) const;

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  // The whole file.
  std::span<const std::byte> contents() const { return contents_; }

 private:
  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}
  absl::Status Map();
  absl::Status ParseHeader();

  std::string path_;
  std::span<const std::byte> contents_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_SAFETENSORS_H_
