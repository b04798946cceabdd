#include "kvstore/service/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MembersTest, FlagTakesNamesBetweenCommas) {
  CLI::App app;
  MemberNames names;
  AddMemberFlag(app, names);
  app.parse("--member-cn server,operator --member-cn other");
  EXPECT_THAT(names, ElementsAre("server", "operator", "other"));
}

TEST(MembersTest, NamesNeedTlsAndMustNotBeEmpty) {
  const TlsOptions tls = {.cert_file = "c", .key_file = "k", .ca_file = "a"};
  EXPECT_TRUE(ValidateMembers({}, {.insecure = true}).ok());
  EXPECT_TRUE(ValidateMembers({}, tls).ok());
  EXPECT_TRUE(ValidateMembers({"server"}, tls).ok());
  EXPECT_THAT(ValidateMembers({"server"}, {.insecure = true}).ToString(),
              HasSubstr("INVALID_ARGUMENT: --member-cn: can't be given together with --insecure"));
  EXPECT_THAT(ValidateMembers({"server", ""}, tls).ToString(), HasSubstr("--member-cn: a name is empty"));
}

}  // namespace
}  // namespace kvmesh
