#include "kvstore/block/cache_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;

CacheIdentity Whole() {
  CacheIdentity identity;
  identity.tenant = "acme";
  identity.cache_salt = "salt";
  identity.model = "llama";
  identity.model_revision = "r1";
  identity.adapter = "sql";
  identity.adapter_revision = "r2";
  identity.numerics = "bf16";
  identity.block_tokens = 16;
  identity.rope = RopeIdentity{500000.0, 128, true, "yarn"};
  identity.attention_policy = "sinks=4,window=1020";
  identity.extra = {{"a", "1"}, {"a-b", ""}};
  return identity;
}

void ExpectInvalid(const absl::Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(CacheIdentityTest, WholeIdentityIsValid) { EXPECT_TRUE(ValidateIdentity(Whole()).ok()); }

TEST(CacheIdentityTest, EveryTextFieldIsBoundedAndUtf8) {
  const std::vector<std::pair<const char*, std::string CacheIdentity::*>> fields = {
      {"identity.tenant", &CacheIdentity::tenant},     {"identity.cache_salt", &CacheIdentity::cache_salt},
      {"identity.model", &CacheIdentity::model},       {"identity.model_revision", &CacheIdentity::model_revision},
      {"identity.adapter", &CacheIdentity::adapter},   {"identity.adapter_revision", &CacheIdentity::adapter_revision},
      {"identity.numerics", &CacheIdentity::numerics},
  };
  for (const auto& [name, field] : fields) {
    CacheIdentity identity = Whole();
    identity.*field = std::string(kMaxIdentityTextBytes, 'x');
    EXPECT_TRUE(ValidateIdentity(identity).ok()) << name;
    identity.*field += 'x';
    ExpectInvalid(ValidateIdentity(identity), name);
    ExpectInvalid(ValidateIdentity(identity), "limit is 1024");
    identity.*field = std::string("\xff");
    ExpectInvalid(ValidateIdentity(identity), absl::StrCat(name, ": not UTF-8"));
  }
}

TEST(CacheIdentityTest, BlockTokensAreBounded) {
  CacheIdentity identity = Whole();
  for (uint32_t tokens : {1u, 16u, 4096u}) {
    identity.block_tokens = tokens;
    EXPECT_TRUE(ValidateIdentity(identity).ok()) << tokens;
  }
  for (uint32_t tokens : {0u, 4097u, std::numeric_limits<uint32_t>::max()}) {
    identity.block_tokens = tokens;
    ExpectInvalid(ValidateIdentity(identity), "identity.block_tokens");
  }
}

TEST(CacheIdentityTest, RopeValuesAreChecked) {
  for (double theta : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CacheIdentity identity = Whole();
    identity.rope->theta = theta;
    ExpectInvalid(ValidateIdentity(identity), "identity.rope.theta");
  }
  CacheIdentity identity = Whole();
  identity.rope->rotary_dim = 0;
  ExpectInvalid(ValidateIdentity(identity), "identity.rope.rotary_dim");
  identity = Whole();
  identity.rope->scaling = "\xed\xa0\x80";
  ExpectInvalid(ValidateIdentity(identity), "identity.rope.scaling");
}

TEST(CacheIdentityTest, AttentionPolicyIsCanonical) {
  CacheIdentity identity = Whole();
  for (const char* policy :
       {"", "full", "sinks=0,window=1", "sinks=4,window=1020", "sinks=4294967295,window=4294967295"}) {
    identity.attention_policy = policy;
    EXPECT_TRUE(ValidateIdentity(identity).ok()) << policy;
  }
  for (const char* policy : {"Full",
                             "full ",
                             "sinks=,window=1",
                             "sinks=1,window=",
                             "sinks=1,window=0",
                             "sinks=01,window=1",
                             "sinks=00,window=1",
                             "sinks=1,window=01",
                             "sinks=+1,window=1",
                             "sinks=-1,window=1",
                             "sinks= 1,window=1",
                             "sinks=1, window=1",
                             "sinks=1,window=1 ",
                             "window=1,sinks=1",
                             "sinks=1",
                             "window=5",
                             "sinks=4294967296,window=1",
                             "sinks=1,window=4294967296",
                             "sinks=1,window=0x10",
                             "sinks=1,window=1,"}) {
    identity.attention_policy = policy;
    ExpectInvalid(ValidateIdentity(identity), "identity.attention_policy");
  }
  identity.attention_policy = std::string("full\0", 5);
  ExpectInvalid(ValidateIdentity(identity), "identity.attention_policy");
}

TEST(CacheIdentityTest, ExtrasAreCheckedAndBounded) {
  for (const char* name : {"", "A", "a b", "a=b", "é", "a/b"}) {
    CacheIdentity identity = Whole();
    identity.extra = {{name, "v"}};
    ExpectInvalid(ValidateIdentity(identity), "identity.extra");
  }
  CacheIdentity identity = Whole();
  identity.extra = {{"note", "\xc0\x80"}};
  ExpectInvalid(ValidateIdentity(identity), "identity.extra.note: not UTF-8");
  identity.extra = {{"note", std::string(kMaxIdentityTextBytes - 5, 'x')}};
  EXPECT_TRUE(ValidateIdentity(identity).ok());
  identity.extra = {{"note", std::string(kMaxIdentityTextBytes - 4, 'x')}};
  ExpectInvalid(ValidateIdentity(identity), "identity.extra");
  identity.extra.clear();
  for (size_t i = 0; i < kMaxIdentityExtras; ++i) identity.extra[absl::StrCat("n", i)] = "";
  EXPECT_TRUE(ValidateIdentity(identity).ok());
  identity.extra["one-more"] = "";
  ExpectInvalid(ValidateIdentity(identity), "limit is 64");
}

TEST(CacheIdentityTest, CanonicalBytesAreTagLengthValue) {
  CacheIdentity identity;
  identity.model = "ab";
  identity.block_tokens = 16;
  identity.extra = {{"a", "1"}, {"a-b", ""}};
  const std::string expected(
      "\x03\x00\x02\x00\x00\x00"
      "ab"
      "\x08\x00\x04\x00\x00\x00\x10\x00\x00\x00"
      "\x0b\x00\x04\x00\x00\x00"
      "a-b="
      "\x0b\x00\x03\x00\x00\x00"
      "a=1",
      37);
  EXPECT_EQ(CanonicalBytes(identity), expected);
}

TEST(CacheIdentityTest, FullAttentionIsTheSameAsNone) {
  CacheIdentity full = Whole();
  full.attention_policy = "full";
  CacheIdentity none = Whole();
  none.attention_policy = "";
  EXPECT_EQ(ComputeFingerprint(full), ComputeFingerprint(none));
  EXPECT_NE(ComputeFingerprint(full), ComputeFingerprint(Whole()));
}

TEST(CacheIdentityTest, EveryFieldChangesTheFingerprint) {
  std::vector<CacheIdentity> all(13, Whole());
  all[1].tenant = "x";
  all[2].cache_salt = "x";
  all[3].model = "x";
  all[4].model_revision = "x";
  all[5].adapter = "x";
  all[6].adapter_revision = "x";
  all[7].numerics = "x";
  all[8].block_tokens = 17;
  all[9].rope->interleaved = false;
  all[10].rope.reset();
  all[11].extra["a"] = "2";
  all[12].attention_policy = "";
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(ComputeFingerprint(all[i]), ComputeFingerprint(all[j])) << i << " " << j;
  }
}

TEST(CacheIdentityJsonTest, RoundTripsEveryField) {
  const CacheIdentity identity = Whole();
  const absl::StatusOr<CacheIdentity> back = ParseIdentityJson(IdentityToJson(identity));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, identity);
}

TEST(CacheIdentityJsonTest, RoundTripsAwkwardValues) {
  CacheIdentity identity;
  identity.block_tokens = 4096;
  identity.tenant = std::string(1, '\0') + "\"\\\n\x7f é 🦙";
  identity.rope = RopeIdentity{0.1 + 0.2, 4294967295u, false, ""};
  identity.attention_policy = "full";
  ASSERT_TRUE(ValidateIdentity(identity).ok());
  const absl::StatusOr<CacheIdentity> back = ParseIdentityJson(IdentityToJson(identity));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, identity);
}

TEST(CacheIdentityJsonTest, WritesFieldsInTagOrderWithoutAbsentOnes) {
  CacheIdentity identity;
  identity.numerics = "bf16";
  identity.model = "m";
  identity.block_tokens = 16;
  EXPECT_EQ(IdentityToJson(identity), R"({"model":"m","numerics":"bf16","block_tokens":16})");
}

TEST(CacheIdentityJsonTest, WholeNumberIsATheta) {
  const auto identity =
      ParseIdentityJson(R"({"block_tokens":1,"rope":{"theta":10000,"rotary_dim":64,"interleaved":false}})");
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->rope->theta, 10000.0);
}

struct Rejected {
  const char* json;
  const char* part;  // of the message
};

TEST(CacheIdentityJsonTest, FaultsNameTheField) {
  const Rejected cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"{} {}", "not valid JSON"},
      {"[]", "identity: wrong type"},
      {"null", "identity: wrong type"},
      {"16", "identity: wrong type"},
      {"{}", "identity.block_tokens: required"},
      {R"({"block_tokens":16,"block_tokens":16})", "identity.block_tokens: duplicate name"},
      {R"({"model":"a","model":"","block_tokens":16})", "identity.model: duplicate name"},
      {R"({"block_tokens":16,"extra":{},"extra":{}})", "identity.extra: duplicate name"},
      {R"({"block_tokens":16,"extra":{"a":"1","a":"1"}})", "identity.extra.a: duplicate name"},
      {R"({"block_tokens":16,"rope":{"theta":1,"theta":1}})", "identity.rope.theta: duplicate name"},
      {R"({"block_tokens":16,"modle":"a"})", "identity.modle: unknown name"},
      {R"({"block_tokens":16,"theta":1})", "identity.theta: unknown name"},
      {R"({"block_tokens":16,"":"a"})", "unknown name"},
      {R"({"block_tokens":16,"rope":{"base":1}})", "identity.rope.base: unknown name"},
      {R"({"block_tokens":"16"})", "identity.block_tokens: wrong type"},
      {R"({"block_tokens":16.0})", "identity.block_tokens: wrong type"},
      {R"({"block_tokens":null})", "identity.block_tokens: wrong type"},
      {R"({"block_tokens":true})", "identity.block_tokens: wrong type"},
      {R"({"block_tokens":-1})", "identity.block_tokens: out of range"},
      {R"({"block_tokens":4294967312})", "identity.block_tokens: out of range"},
      {R"({"block_tokens":99999999999999999999999})", "identity.block_tokens: wrong type"},
      {R"({"block_tokens":0})", "identity.block_tokens: 0, must be 1 to 4096"},
      {R"({"block_tokens":4097})", "identity.block_tokens: 4097, must be 1 to 4096"},
      {R"({"tenant":5,"block_tokens":16})", "identity.tenant: wrong type"},
      {R"({"tenant":["a"],"block_tokens":16})", "identity.tenant: wrong type"},
      {R"({"tenant":{"a":1},"block_tokens":16})", "identity.tenant: wrong type"},
      {R"({"rope":"x","block_tokens":16})", "identity.rope: wrong type"},
      {R"({"rope":null,"block_tokens":16})", "identity.rope: wrong type"},
      {R"({"extra":[],"block_tokens":16})", "identity.extra: wrong type"},
      {R"({"extra":{"a":1},"block_tokens":16})", "identity.extra.a: wrong type"},
      {R"({"extra":{"a":{}},"block_tokens":16})", "identity.extra.a: wrong type"},
      {R"({"extra":{"A":"1"},"block_tokens":16})", "identity.extra: a name does not match"},
      {R"({"block_tokens":16,"rope":{}})", "identity.rope.theta: required"},
      {R"({"block_tokens":16,"rope":{"theta":1,"interleaved":true}})", "identity.rope.rotary_dim: required"},
      {R"({"block_tokens":16,"rope":{"theta":1,"rotary_dim":2}})", "identity.rope.interleaved: required"},
      {R"({"block_tokens":16,"rope":{"theta":1e999,"rotary_dim":2,"interleaved":true}})",
       "identity.rope.theta: not valid"},
      {R"({"block_tokens":16,"rope":{"theta":-1,"rotary_dim":2,"interleaved":true}})",
       "identity.rope.theta: out of range"},
      {R"({"block_tokens":16,"rope":{"theta":1,"rotary_dim":2,"interleaved":1}})",
       "identity.rope.interleaved: wrong type"},
      {R"({"block_tokens":16,"attention_policy":"sinks=1"})", "identity.attention_policy"},
      {"{\"tenant\":\"\xff\",\"block_tokens\":16}", "identity.tenant: not valid JSON"},
      {R"({"tenant":"\ud800","block_tokens":16})", "identity.tenant: not valid JSON"},
      {R"({"tenant":"\u12","block_tokens":16})", "identity.tenant: not valid JSON"},
      {R"({"block_tokens":16} // note)", "not valid JSON"},
  };
  for (const Rejected& rejected : cases) {
    SCOPED_TRACE(rejected.json);
    ExpectInvalid(ParseIdentityJson(rejected.json).status(), rejected.part);
  }
}

TEST(CacheIdentityJsonTest, SizeAndDepthAreBounded) {
  ExpectInvalid(ParseIdentityJson(std::string(2 << 20, ' ')).status(), "the limit is 1048576");
  ExpectInvalid(ParseIdentityJson(std::string(500'000, '[')).status(), "wrong type");
  std::string extras = R"({"block_tokens":16,"extra":{)";
  for (int i = 0; i < 65; ++i) absl::StrAppend(&extras, i == 0 ? "" : ",", "\"n", i, "\":\"\"");
  ExpectInvalid(ParseIdentityJson(extras + "}}").status(), "more than 64 names");
}

TEST(CacheIdentityJsonTest, MutatedJsonNeverCrashesAndNeverGivesAnInvalidIdentity) {
  constexpr uint32_t kSeed = 20240601;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  const std::string valid = IdentityToJson(Whole());
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string json = valid;
    const int edits = 1 + random() % 3;
    for (int k = 0; k < edits && !json.empty(); ++k) {
      const size_t at = random() % json.size();
      switch (random() % 4) {
        case 0:
          json[at] = static_cast<char>(random());
          break;
        case 1:
          json.erase(at, 1 + random() % 8);
          break;
        case 2:
          json.insert(at, 1, "{}[]\",:0\\"[random() % 9]);
          break;
        default:
          json.insert(at, json.substr(random() % json.size(), random() % 32));
          break;
      }
    }
    const absl::StatusOr<CacheIdentity> identity = ParseIdentityJson(json);
    if (!identity.ok()) {
      ASSERT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument) << json;
      continue;
    }
    ++accepted;
    ASSERT_TRUE(ValidateIdentity(*identity).ok()) << json;
    const absl::StatusOr<CacheIdentity> back = ParseIdentityJson(IdentityToJson(*identity));
    ASSERT_TRUE(back.ok()) << json;
    ASSERT_EQ(*back, *identity) << json;
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace kvmesh
