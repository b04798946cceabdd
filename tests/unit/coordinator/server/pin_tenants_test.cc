// Pins of several tenants on workers that keep them by id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/server/admin_calls.h"
#include "tests/unit/coordinator/scripted_worker.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Registered, holds the chain, and answers commands at once.
class PinningWorker {
 public:
  PinningWorker(CoordinatorCore& core, const std::string& id, uint8_t incarnation, const RootKey& root,
                std::span<const BlockKey> chain)
      : core_(core), worker_(id, incarnation), session_(core.report_context(), [this](v1::ReportResponse response) {
          if (response.has_command()) Answer(response.command());
          return true;
        }) {
    worker_.Stored(IndexSet::kMemory, root, chain);
    std::vector<v1::ReportResponse> out;
    EXPECT_TRUE(session_.OnMessage(worker_.Register(), out).ok());
    for (const v1::ReportRequest& piece : worker_.Snapshot()) EXPECT_TRUE(session_.OnMessage(piece, out).ok());
  }

  std::set<std::string> pins;
  absl::StatusCode pin_answer = absl::StatusCode::kOk;

 private:
  void Answer(const v1::Command& command) {
    v1::CommandResult result;
    result.set_id(command.id());
    if (command.has_pin()) {
      result.set_code(static_cast<int>(pin_answer));
      if (pin_answer == absl::StatusCode::kOk) {
        pins.insert(command.pin().pin_id());
        result.set_blocks(command.pin().block_keys().size() / 16);
      }
    } else if (pins.erase(command.unpin().pin_id()) == 0) {
      result.set_code(static_cast<int>(absl::StatusCode::kNotFound));
    }
    core_.commands.Resolve(worker_.id(), result);
  }

  CoordinatorCore& core_;
  ScriptedWorker worker_;
  ReportSession session_;
};

class PinTenantsTest : public testing::Test {
 protected:
  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.tls.insecure = true;
    return options;
  }
  absl::Status Pin(const CallTenant& tenant, const std::string& id) {
    v1::PinRequest request;
    request.mutable_prefix()->set_root(root_.ToString());
    request.mutable_prefix()->set_block_keys(std::string(KeysToBytes(chain_)));
    request.set_pin_id(id);
    request.set_ttl_ms(1000);
    v1::PinResponse response;
    return AdminCalls{core_, tenant, cancelled_}.Pin(request, response);
  }
  absl::Status Unpin(const CallTenant& tenant, const std::string& id) {
    v1::UnpinRequest request;
    request.set_pin_id(id);
    return AdminCalls{core_, tenant, cancelled_}.Unpin(request);
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> chain_ = TestChain(root_, 0, 6);
  const std::function<bool()> cancelled_ = [] { return false; };
  CoordinatorCore core_{Options()};
  PinningWorker first_{core_, "first", 1, root_, chain_};
};

TEST_F(PinTenantsTest, PinBelongsToItsTenant) {
  ASSERT_TRUE(Pin("alice", "p").ok());
  ASSERT_THAT(first_.pins, SizeIs(1));
  const std::set<std::string> alices = first_.pins;
  EXPECT_TRUE(Unpin("bob", "p").ok());
  EXPECT_TRUE(Unpin(std::nullopt, "p").ok());
  EXPECT_EQ(first_.pins, alices);
  ASSERT_TRUE(Pin("bob", "p").ok());
  EXPECT_THAT(first_.pins, SizeIs(2)) << "Bob's replaced Alice's";
  EXPECT_TRUE(Unpin("bob", "p").ok());
  EXPECT_EQ(first_.pins, alices);
  EXPECT_TRUE(Unpin("alice", "p").ok());
  EXPECT_THAT(first_.pins, IsEmpty());
}

TEST_F(PinTenantsTest, PinThatOneWorkerRefusesIsTakenBackOnTheOthers) {
  PinningWorker second(core_, "second", 2, root_, chain_);
  ASSERT_TRUE(Pin("alice", "other").ok());
  second.pin_answer = absl::StatusCode::kResourceExhausted;
  const absl::Status status = Pin("alice", "p");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("second"));
  EXPECT_THAT(first_.pins, SizeIs(1));
  EXPECT_THAT(second.pins, SizeIs(1));
  // One that has lost the prefix meanwhile is no failure.
  second.pin_answer = absl::StatusCode::kNotFound;
  EXPECT_TRUE(Pin("alice", "p").ok());
  EXPECT_THAT(first_.pins, SizeIs(2));
}

}  // namespace
}  // namespace kvmesh
