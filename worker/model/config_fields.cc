#include "worker/model/config_fields.h"

#include "absl/strings/str_cat.h"
#include "worker/model/strict_json.h"

namespace kvmesh {

using nlohmann::json;

absl::StatusOr<ConfigFields> ConfigFields::Parse(absl::string_view text, absl::string_view what) {
  absl::StatusOr<json> parsed = ParseStrictJson(text, what);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_object()) return absl::InvalidArgumentError(absl::StrCat(what, ": not an object"));
  return ConfigFields(*std::move(parsed), absl::StrCat(what, ": "));
}

absl::StatusOr<ConfigFields> ConfigFields::Nested(const char* name) const {
  const json& value = (*this)[name];
  if (!value.is_object()) return Bad(name, "not an object");
  return ConfigFields(value, absl::StrCat(prefix_, name, "."));
}

const json& ConfigFields::operator[](const char* name) const {
  static const json kNull;
  const auto found = object_.find(name);
  return found == object_.end() ? kNull : *found;
}

absl::Status ConfigFields::Require(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if ((*this)[name].is_null()) return Bad(name, "missing");
  }
  return absl::OkStatus();
}

absl::Status ConfigFields::ReadInt64(const char* name, int64_t min, int64_t max, int64_t& out) const {
  const json& value = (*this)[name];
  if (value.is_null()) return absl::OkStatus();
  const std::optional<int64_t> count = JsonCount(value, max);
  if (!count || *count < min) return Bad(name, absl::StrCat("not an integer from ", min, " to ", max));
  out = *count;
  return absl::OkStatus();
}

absl::Status ConfigFields::ReadFlag(const char* name, bool& out) const {
  const json& value = (*this)[name];
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_boolean()) return Bad(name, "not a boolean");
  out = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ConfigFields::ReadNumber(const char* name, double min, double max, double& out) const {
  const json& value = (*this)[name];
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_number()) return Bad(name, "not a number");
  const double number = value.get<double>();
  if (!(number >= min && number <= max)) return Bad(name, absl::StrCat("not between ", min, " and ", max));
  out = number;
  return absl::OkStatus();
}

absl::Status ConfigFields::ReadText(const char* name, std::string& out) const {
  const json& value = (*this)[name];
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_string()) return Bad(name, "not text");
  out = value.get<std::string>();
  return absl::OkStatus();
}

absl::Status ConfigFields::Bad(absl::string_view field, absl::string_view fault) const {
  return absl::InvalidArgumentError(absl::StrCat(prefix_, field, ": ", fault));
}

}  // namespace kvmesh
