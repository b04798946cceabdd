// Reads the fields of a Hugging Face config.json, each within a limit.
#ifndef KVMESH_WORKER_MODEL_CONFIG_FIELDS_H_
#define KVMESH_WORKER_MODEL_CONFIG_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"
#include "nlohmann/json.hpp"

namespace kvmesh {

// One JSON object. A field that is null counts as absent. All errors are INVALID_ARGUMENT `<what>: <field>: <fault>`.
class ConfigFields {
 public:
  // Not JSON, duplicate names, or not an object. `what` begins every message.
  static absl::StatusOr<ConfigFields> Parse(absl::string_view json, absl::string_view what);

  // The fields of the object `name`; errors name them `name.field`. Not an object, or absent.
  absl::StatusOr<ConfigFields> Nested(const char* name) const;

  // The value of `name`; null when it is absent.
  const nlohmann::json& operator[](const char* name) const;

  // Whether `name` is written, be it as null.
  bool Mentions(const char* name) const { return object_.contains(name); }

  // The first of `names` that is absent.
  absl::Status Require(std::initializer_list<const char*> names) const;

  // An integer from `min` to `max`. Each Read leaves `out` alone when the field is absent.
  template <class Int>
  absl::Status ReadInt(const char* name, int64_t min, int64_t max, Int& out) const {
    int64_t value = static_cast<int64_t>(out);
    KVMESH_RETURN_IF_ERROR(ReadInt64(name, min, max, value));
    out = static_cast<Int>(value);
    return absl::OkStatus();
  }
  absl::Status ReadFlag(const char* name, bool& out) const;
  absl::Status ReadNumber(const char* name, double min, double max, double& out) const;
  absl::Status ReadText(const char* name, std::string& out) const;

  absl::Status Bad(absl::string_view field, absl::string_view fault) const;

 private:
  ConfigFields(nlohmann::json object, std::string prefix) : object_(std::move(object)), prefix_(std::move(prefix)) {}
  absl::Status ReadInt64(const char* name, int64_t min, int64_t max, int64_t& out) const;

  nlohmann::json object_;
  std::string prefix_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_CONFIG_FIELDS_H_
