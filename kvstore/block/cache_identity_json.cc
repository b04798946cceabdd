// The JSON form of an identity. A SAX reader fills the identity directly, since a JSON tree would hide duplicate names.
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/block/cache_identity.h"

namespace kvmesh {
namespace {

// Above any valid identity with every byte of its text escaped.
constexpr size_t kMaxIdentityJsonBytes = size_t{1} << 20;

class IdentityReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  CacheIdentity& identity() { return identity_; }
  const absl::Status& status() const { return status_; }

  // A rope object was seen and lacked this field; empty when complete.
  std::string MissingRopeField() const {
    if (!identity_.rope.has_value()) return "";
    for (const char* name : {"theta", "rotary_dim", "interleaved"}) {
      if (!rope_names_.contains(name)) return absl::StrCat("rope.", name);
    }
    return "";
  }
  bool HasBlockTokens() const { return top_names_.contains("block_tokens"); }

  bool null() override { return WrongType("null"); }
  bool boolean(bool value) override {
    if (place_ == Place::kRope && name_ == "interleaved") {
      identity_.rope->interleaved = value;
      return true;
    }
    return WrongType("a boolean");
  }
  bool number_integer(number_integer_t) override {
    return IsNumber() ? Fail("out of range: negative") : WrongType("a number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kRope && name_ == "theta") {
      identity_.rope->theta = static_cast<double>(value);
      return true;
    }
    uint32_t* target = IntegerTarget();
    if (target == nullptr) return WrongType("a number");
    if (value > std::numeric_limits<uint32_t>::max()) return Fail("out of range: above 4294967295");
    *target = static_cast<uint32_t>(value);
    return true;
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (place_ == Place::kRope && name_ == "theta") {
      identity_.rope->theta = value;
      return true;
    }
    return WrongType(IsNumber() ? "not an integer below 2^64" : "a number");
  }
  bool string(string_t& value) override {
    std::string* target = TextTarget();
    if (target == nullptr) return WrongType("a string");
    *target = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return WrongType("binary"); }
  bool start_array(std::size_t) override { return WrongType("an array"); }
  bool end_array() override { return true; }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ == Place::kTop && name_ == "rope") {
      identity_.rope.emplace();
      place_ = Place::kRope;
      return true;
    }
    if (place_ == Place::kTop && name_ == "extra") {
      place_ = Place::kExtra;
      return true;
    }
    return WrongType("an object");
  }
  bool end_object() override {
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    name_.clear();
    return true;
  }
  bool key(string_t& name) override {
    std::set<std::string>& names = place_ == Place::kTop    ? top_names_
                                   : place_ == Place::kRope ? rope_names_
                                                            : extra_names_;
    name_ = name;
    if (!KnownName()) return Fail("unknown name");
    if (!names.insert(name).second) return Fail("duplicate name");
    if (place_ == Place::kExtra && names.size() > kMaxIdentityExtras) {
      return Fail(absl::StrCat("more than ", kMaxIdentityExtras, " names"));
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("not valid JSON at byte ", position, " (syntax, UTF-8 or a number out of range)"));
  }

 private:
  enum class Place { kOutside, kTop, kRope, kExtra };

  bool Fail(absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(Path(), ": ", what));
    return false;
  }
  bool WrongType(absl::string_view got) { return Fail(absl::StrCat("wrong type: ", got)); }

  // The name being read, bounded and without what a log line can't hold.
  std::string Path() const {
    const char* prefix = place_ == Place::kRope ? ".rope" : place_ == Place::kExtra ? ".extra" : "";
    if (name_.empty()) return absl::StrCat("identity", prefix);
    std::string name = name_.substr(0, 64);
    for (char& c : name) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    return absl::StrCat("identity", prefix, ".", name);
  }

  bool KnownName() {
    if (place_ == Place::kExtra) return true;
    if (place_ == Place::kTop && (name_ == "rope" || name_ == "extra")) return true;
    if (place_ == Place::kRope && (name_ == "theta" || name_ == "interleaved")) return true;
    return IntegerTarget() != nullptr || TextTarget() != nullptr;
  }
  bool IsNumber() { return IntegerTarget() != nullptr || (place_ == Place::kRope && name_ == "theta"); }
  uint32_t* IntegerTarget() {
    if (place_ == Place::kTop && name_ == "block_tokens") return &identity_.block_tokens;
    if (place_ == Place::kRope && name_ == "rotary_dim") return &identity_.rope->rotary_dim;
    return nullptr;
  }
  std::string* TextTarget() {
    if (place_ == Place::kRope) return name_ == "scaling" ? &identity_.rope->scaling : nullptr;
    if (place_ == Place::kExtra) return &identity_.extra[name_];
    if (place_ != Place::kTop) return nullptr;
    if (name_ == "tenant") return &identity_.tenant;
    if (name_ == "cache_salt") return &identity_.cache_salt;
    if (name_ == "model") return &identity_.model;
    if (name_ == "model_revision") return &identity_.model_revision;
    if (name_ == "adapter") return &identity_.adapter;
    if (name_ == "adapter_revision") return &identity_.adapter_revision;
    if (name_ == "numerics") return &identity_.numerics;
    if (name_ == "attention_policy") return &identity_.attention_policy;
    return nullptr;
  }

  CacheIdentity identity_;
  absl::Status status_;
  Place place_ = Place::kOutside;
  std::string name_;
  std::set<std::string> top_names_;
  std::set<std::string> rope_names_;
  std::set<std::string> extra_names_;
};

}  // namespace

absl::StatusOr<CacheIdentity> ParseIdentityJson(absl::string_view json) {
  if (json.size() > kMaxIdentityJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity: ", json.size(), " bytes of JSON, the limit is ", kMaxIdentityJsonBytes));
  }
  IdentityReader reader;
  const bool parsed = nlohmann::json::sax_parse(json.data(), json.data() + json.size(), &reader);
  if (!reader.status().ok()) return reader.status();
  if (!parsed) return absl::InvalidArgumentError("identity: not valid JSON");
  if (!reader.HasBlockTokens()) return absl::InvalidArgumentError("identity.block_tokens: required");
  if (const std::string missing = reader.MissingRopeField(); !missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("identity.", missing, ": required in rope"));
  }
  KVMESH_RETURN_IF_ERROR(ValidateIdentity(reader.identity()));
  return std::move(reader.identity());
}

std::string IdentityToJson(const CacheIdentity& identity) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  const auto text = [](nlohmann::ordered_json& object, const char* name, const std::string& value) {
    if (!value.empty()) object[name] = value;
  };
  text(out, "tenant", identity.tenant);
  text(out, "cache_salt", identity.cache_salt);
  text(out, "model", identity.model);
  text(out, "model_revision", identity.model_revision);
  text(out, "adapter", identity.adapter);
  text(out, "adapter_revision", identity.adapter_revision);
  text(out, "numerics", identity.numerics);
  out["block_tokens"] = identity.block_tokens;
  if (identity.rope.has_value()) {
    nlohmann::ordered_json rope = nlohmann::ordered_json::object();
    rope["theta"] = identity.rope->theta;
    rope["rotary_dim"] = identity.rope->rotary_dim;
    rope["interleaved"] = identity.rope->interleaved;
    text(rope, "scaling", identity.rope->scaling);
    out["rope"] = std::move(rope);
  }
  text(out, "attention_policy", identity.attention_policy);
  if (!identity.extra.empty()) {
    nlohmann::ordered_json extra = nlohmann::ordered_json::object();
    for (const auto& [name, value] : identity.extra) extra[name] = value;
    out["extra"] = std::move(extra);
  }
  // Text that is not UTF-8 is replaced rather than thrown at the caller.
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kvmesh
