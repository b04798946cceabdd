// Route, RouteBatch and Complete over a real connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kvstore/block/cache_identity.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/secrets.h"
#include "kvstore/block/ticket.h"
#include "tests/unit/coordinator/server/coordinator_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class RouteServiceTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    CoordinatorTest::SetUp();
    Start();
    identity_.set_model("m");
    identity_.set_block_tokens(kBlockTokens);
    for (uint32_t i = 0; i < 10 * kBlockTokens + 5; ++i) tokens_.push_back(i);
    CacheIdentity identity;
    identity.model = "m";
    identity.block_tokens = kBlockTokens;
    identity_root_ = DeriveRoot(DeriveTenantSecret("secret", ""), ComputeFingerprint(identity));
    keys_ = ComputeBlockKeys(RootAsParent(identity_root_), tokens_, kBlockTokens);
  }
  v1::RouteRequest ByTokens() const {
    v1::RouteRequest request;
    *request.mutable_identity() = identity_;
    request.mutable_tokens()->mutable_ids()->Assign(tokens_.begin(), tokens_.end());
    return request;
  }
  v1::RouteRequest ByIdentityAndKeys() const {
    v1::RouteRequest request;
    *request.mutable_identity() = identity_;
    request.set_block_keys(std::string(KeysToBytes(keys_)));
    request.set_prompt_tokens(tokens_.size());
    return request;
  }

  v1::CacheIdentity identity_;
  std::vector<uint32_t> tokens_;
  RootKey identity_root_;
  std::vector<BlockKey> keys_;
};

TEST_F(RouteServiceTest, WithoutWorkersItIsUnavailable) {
  v1::RouteResponse response;
  EXPECT_EQ(Route(ByTokens(), &response).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RouteServiceTest, KeysTokensAndRootGiveTheSameAnswer) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kDevice, identity_root_, std::span(keys_).first(3));
  worker.Stored(IndexSet::kMemory, identity_root_, std::span(keys_).first(7));
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::RouteRequest by_root = ByIdentityAndKeys();
  by_root.clear_identity();
  by_root.set_root(identity_root_.ToString());
  for (const v1::RouteRequest& request : {ByTokens(), ByIdentityAndKeys(), by_root}) {
    v1::RouteResponse response;
    ASSERT_TRUE(Route(request, &response).ok());
    EXPECT_EQ(response.worker_id(), "a");
    EXPECT_EQ(response.worker_address(), worker.info().address());
    EXPECT_EQ(response.placement_id().size(), 16u);
    EXPECT_EQ(response.matched_tokens(), 7u * kBlockTokens);
    EXPECT_EQ(response.predicted_hit_tokens(), 7u * kBlockTokens);
    ASSERT_EQ(response.holders_size(), 1);
    EXPECT_EQ(response.holders(0).worker_id(), "a");
    EXPECT_EQ(response.holders(0).device_tokens(), 3u * kBlockTokens);
    EXPECT_EQ(response.holders(0).memory_tokens(), 7u * kBlockTokens);
    EXPECT_EQ(response.holders(0).disk_tokens(), 0u);
    ASSERT_EQ(response.reasons_size(), 1);
    EXPECT_EQ(response.reasons(0).worker_id(), "a");
    EXPECT_EQ(response.reasons(0).local_tokens(), 7u * kBlockTokens);
    EXPECT_EQ(response.reasons(0).compute_tokens(), 3u * kBlockTokens + 5);
    EXPECT_GT(response.reasons(0).total_seconds(), 0);
  }
}

TEST_F(RouteServiceTest, AnotherIdentitysRootMatchesNothing) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kDevice, identity_root_, keys_);
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::RouteRequest request = ByIdentityAndKeys();
  request.mutable_identity()->set_tenant("someone else");
  v1::RouteResponse response;
  ASSERT_TRUE(Route(request, &response).ok());
  EXPECT_EQ(response.matched_tokens(), 0u);
}

TEST_F(RouteServiceTest, SourcesOfANamedWorkerCarryTickets) {
  ScriptedWorker holder("holder", 1);
  holder.Stored(IndexSet::kMemory, identity_root_, keys_);
  ScriptedWorker cold("cold", 2);
  ReportClient holder_client(*stub_);
  ReportClient cold_client(*stub_);
  holder_client.GoLive(holder);
  cold_client.GoLive(cold);
  v1::RouteRequest request = ByTokens();
  request.set_worker_id("cold");
  v1::RouteResponse response;
  ASSERT_TRUE(Route(request, &response).ok());
  EXPECT_EQ(response.worker_id(), "cold");
  ASSERT_EQ(response.sources_size(), 1);
  EXPECT_EQ(response.sources(0).peer_id(), "holder");
  EXPECT_EQ(response.sources(0).peer_address(), holder.info().address());
  EXPECT_EQ(response.sources(0).set(), v1::BLOCK_SET_MEMORY);
  EXPECT_EQ(response.sources(0).block_count(), keys_.size());
  EXPECT_EQ(response.sources(0).predicted_bytes(), keys_.size() << 20);
  const auto ticket = OpenTicket(response.sources(0).ticket(), DeriveTicketKey("secret"), clock_.Now());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(ticket->last_key, keys_.back());
  EXPECT_EQ(response.predicted_hit_tokens(), keys_.size() * kBlockTokens);
}

TEST_F(RouteServiceTest, MalformedRequestsNameTheField) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  const auto expect = [&](const std::string& field, v1::RouteRequest request,
                          const std::function<void(v1::RouteRequest&)>& change) {
    change(request);
    v1::RouteResponse response;
    const absl::Status status = Route(request, &response);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  const v1::RouteRequest keys = ByIdentityAndKeys();
  const v1::RouteRequest tokens = ByTokens();
  expect("identity", keys, [](auto& r) { r.clear_identity(); });
  expect("block_tokens", keys, [](auto& r) { r.mutable_identity()->set_block_tokens(0); });
  expect("model", keys, [](auto& r) { r.mutable_identity()->set_model("\xff"); });
  expect("attention_policy", keys, [](auto& r) { r.mutable_identity()->set_attention_policy("maybe"); });
  expect("extra", keys, [](auto& r) { r.mutable_identity()->add_extra()->set_name("Not Allowed"); });
  expect("root", keys, [](auto& r) { r.set_root(std::string(16, 'r')); });  // beside identity
  expect("root", keys, [](auto& r) { r.clear_identity(), r.set_root("short"); });
  expect("root", tokens, [](auto& r) { r.clear_identity(), r.set_root(std::string(16, 'r')); });
  expect("block_keys", keys, [](auto& r) { r.mutable_block_keys()->pop_back(); });
  expect("block_keys", keys, [](auto& r) { r.mutable_tokens()->add_ids(1); });
  expect("block_keys", keys, [](auto& r) { r.clear_block_keys(), r.clear_prompt_tokens(); });
  expect("block_keys", keys, [](auto& r) { r.mutable_block_keys()->assign(16 * 65537, 'k'); });
  expect("prompt_tokens", keys, [](auto& r) { r.set_prompt_tokens(17); });
  expect("prompt_tokens", keys, [](auto& r) { r.set_prompt_tokens(1'048'577); });
  expect("prompt_tokens", tokens, [](auto& r) { r.set_prompt_tokens(1); });
  expect("tokens", tokens, [](auto& r) { r.mutable_tokens()->clear_ids(); });
  expect("tokens", tokens, [](auto& r) { r.mutable_tokens()->mutable_ids()->Resize(1'048'577, 7); });
  expect("top_k", keys, [](auto& r) { r.set_top_k(65); });
  expect("worker_id", keys, [](auto& r) { r.set_worker_id(std::string(129, 'w')); });
}

TEST_F(RouteServiceTest, PromptOfLessThanABlockIsRouted) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::RouteRequest request = ByIdentityAndKeys();
  request.clear_block_keys();
  request.set_prompt_tokens(3);
  v1::RouteResponse response;
  ASSERT_TRUE(Route(request, &response).ok());
  EXPECT_EQ(response.reasons(0).compute_tokens(), 3u);
}

TEST_F(RouteServiceTest, LongestPromptIsRouted) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::RouteRequest request = ByTokens();
  request.mutable_tokens()->mutable_ids()->Resize(1'048'576, 7);
  v1::RouteResponse response;
  ASSERT_TRUE(Route(request, &response).ok());
  EXPECT_EQ(response.reasons(0).compute_tokens(), 1'048'576u);
}

TEST_F(RouteServiceTest, BatchGivesEachItsOwnResult) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kDevice, identity_root_, keys_);
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::RouteBatchRequest batch;
  *batch.add_requests() = ByTokens();
  *batch.add_requests() = ByIdentityAndKeys();
  batch.mutable_requests(1)->set_top_k(100);
  *batch.add_requests() = ByIdentityAndKeys();
  batch.mutable_requests(2)->set_worker_id("nobody");
  v1::RouteBatchResponse response;
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::RouteBatch, batch, &response).ok());
  ASSERT_EQ(response.results_size(), 3);
  EXPECT_EQ(response.results(0).code(), 0);
  EXPECT_EQ(response.results(0).response().matched_tokens(), keys_.size() * kBlockTokens);
  EXPECT_EQ(response.results(1).code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(response.results(1).message(), HasSubstr("top_k"));
  EXPECT_FALSE(response.results(1).has_response());
  EXPECT_EQ(response.results(2).code(), static_cast<int>(absl::StatusCode::kUnavailable));
  for (int i = 0; i < 254; ++i) *batch.add_requests() = ByTokens();
  EXPECT_EQ(Call(&v1::Coordinator::Stub::RouteBatch, batch, &response).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RouteServiceTest, LookupAnswersLikeARouteAndCountsAsNone) {
  ScriptedWorker holder("holder", 1);
  holder.Stored(IndexSet::kMemory, identity_root_, std::span(keys_).first(7));
  ScriptedWorker cold("cold", 2);
  ReportClient holder_client(*stub_);
  ReportClient cold_client(*stub_);
  holder_client.GoLive(holder);
  cold_client.GoLive(cold);
  const auto stats = [&] {
    v1::CoordinatorStatsResponse response;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::Stats, v1::CoordinatorStatsRequest(), &response).ok());
    return response.SerializeAsString();
  };
  const std::string before = stats();
  v1::RouteRequest request = ByTokens();
  request.set_worker_id("cold");
  request.set_lookup_only(true);
  v1::RouteResponse looked;
  ASSERT_TRUE(Route(request, &looked).ok());
  EXPECT_EQ(stats(), before);
  EXPECT_THAT(server_->MetricsText(), HasSubstr("kvmesh_coordinator_routes_total{outcome=\"lookup\"} 1"));
  EXPECT_EQ(looked.placement_id(), "");
  EXPECT_EQ(looked.matched_tokens(), 7u * kBlockTokens);
  ASSERT_EQ(looked.sources_size(), 1);
  EXPECT_EQ(looked.sources(0).ticket(), "");
  request.set_lookup_only(false);
  v1::RouteResponse routed;
  ASSERT_TRUE(Route(request, &routed).ok());
  EXPECT_NE(stats(), before);
  EXPECT_EQ(routed.placement_id().size(), 16u);
  EXPECT_NE(routed.sources(0).ticket(), "");
  routed.clear_placement_id();
  routed.mutable_sources(0)->clear_ticket();
  EXPECT_EQ(looked.SerializeAsString(), routed.SerializeAsString());
}

TEST_F(RouteServiceTest, CompletionCountsActualAgainstPredicted) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kDevice, identity_root_, std::span(keys_).first(4));
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::RouteResponse routed;
  ASSERT_TRUE(Route(ByTokens(), &routed).ok());
  const auto stats = [&] {
    v1::CoordinatorStatsResponse response;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::Stats, v1::CoordinatorStatsRequest(), &response).ok());
    return response;
  };
  EXPECT_EQ(stats().routes(), 1u);
  EXPECT_EQ(stats().requested_tokens(), keys_.size() * kBlockTokens);  // whole blocks
  EXPECT_EQ(stats().predicted_hit_tokens(), 4u * kBlockTokens);
  EXPECT_EQ(stats().placements_in_flight(), 1u);
  EXPECT_EQ(stats().workers_ready(), 1u);
  EXPECT_EQ(stats().distinct_blocks(), 4u);
  EXPECT_EQ(stats().coordinator_incarnation().size(), 16u);

  v1::CompleteRequest complete;
  complete.set_placement_id(routed.placement_id());
  complete.mutable_hits()->set_device(48);
  complete.mutable_hits()->set_peer(16);
  v1::CompleteResponse completed;
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::Complete, complete, &completed).ok());
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Complete, complete, &completed).code(), absl::StatusCode::kNotFound);
  complete.set_placement_id("short");
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Complete, complete, &completed).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stats().placements_in_flight(), 0u);
  EXPECT_EQ(stats().actual_hit_tokens(), 64u);
  EXPECT_EQ(stats().hits().device(), 48u);
  EXPECT_EQ(stats().hits().peer(), 16u);
  EXPECT_THAT(server_->MetricsText(), HasSubstr("kvmesh_coordinator_actual_hit_tokens_total{tier=\"peer\"} 16"));
}

}  // namespace
}  // namespace kvmesh
