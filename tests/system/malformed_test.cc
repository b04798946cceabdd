// Requests that no sane client sends: each is refused with a status that says what to do next and names the field, and
// the processes live on at their size.
#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "absl/time/clock.h"
#include "kvstore/block/ticket.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/grpc_status.h"
#include "tests/support/process_cluster.h"
#include "tests/support/raw_call.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kHuge32 = std::numeric_limits<uint32_t>::max();
constexpr char kSecret[] = "of the cluster";
// A process may keep buffers of its largest messages, and the heap of its threads.
constexpr uint64_t kMayGrow = uint64_t{512} << 20;

class MalformedTest : public testing::Test {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<ProcessCluster>(
        ClusterConfig{.workers = {{.model = false}, {.model = true, .device_blocks = 64}}, .secret = kSecret});
    ASSERT_TRUE(cluster_->Start());
    stub_ = cluster_->Stub(0);
    model_stub_ = cluster_->Stub(1);
    channel_ = MakeChannel(cluster_->coordinator_address(), grpc::InsecureChannelCredentials());
    coordinator_ = v1::Coordinator::NewStub(channel_);
    for (rss_ = {cluster_->coordinator().ResidentBytes()}; rss_.size() < 3;) {
      rss_.push_back(cluster_->worker(rss_.size() - 1).ResidentBytes());
    }
  }

  void TearDown() override {
    ASSERT_TRUE(cluster_->coordinator().Running());
    EXPECT_LT(cluster_->coordinator().ResidentBytes(), rss_[0] + kMayGrow);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(cluster_->worker(i).Running()) << i;
      EXPECT_LT(cluster_->worker(i).ResidentBytes(), rss_[i + 1] + kMayGrow);
    }
    EXPECT_TRUE(cluster_->BooksAreClean());
    EXPECT_TRUE(cluster_->IndexEqualsWorkers());
  }

  template <class Stub, class Request, class Response>
  static grpc::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    Response response;
    return (stub.*method)(&context, request, &response);
  }

  template <class Request, class Response>
  grpc::Status Ask(grpc::Status (v1::Worker::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request) {
    return Call(*stub_, method, request);
  }
  template <class Request, class Response>
  grpc::Status AskCoordinator(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                            Response*),
                              const Request& request) {
    return Call(*coordinator_, method, request);
  }

  // Of a streaming answer, the end.
  template <class Response, class Request>
  grpc::Status End(v1::Worker::Stub& stub,
                   std::unique_ptr<grpc::ClientReader<Response>> (v1::Worker::Stub::*method)(grpc::ClientContext*,
                                                                                             const Request&),
                   const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    const auto reader = (stub.*method)(&context, request);
    for (Response response; reader->Read(&response);) {
    }
    return reader->Finish();
  }

  static void Valid(v1::CacheIdentity& identity) {
    identity.set_model("m");
    identity.set_block_tokens(kEngineBlockTokens);
  }

  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<v1::Worker::Stub> stub_;
  std::unique_ptr<v1::Worker::Stub> model_stub_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> coordinator_;
  std::vector<uint64_t> rss_;
};

void ExpectRefused(const grpc::Status& status, grpc::StatusCode code, const std::string& field) {
  EXPECT_EQ(status.error_code(), code) << field << ": " << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(field));
}
void ExpectInvalid(const grpc::Status& status, const std::string& field) {
  ExpectRefused(status, grpc::StatusCode::INVALID_ARGUMENT, field);
}

TEST_F(MalformedTest, EmptyMessagesAreRefusedByField) {
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, v1::OpenSequenceRequest()), "tokens");
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, v1::AppendKvRequest()), "layers");
  ExpectInvalid(Ask(&v1::Worker::Stub::Attend, v1::AttendRequest()), "q_heads");
  ExpectRefused(Ask(&v1::Worker::Stub::Fork, v1::ForkRequest()), grpc::StatusCode::NOT_FOUND, "sequence");
  ExpectRefused(Ask(&v1::Worker::Stub::Truncate, v1::TruncateRequest()), grpc::StatusCode::NOT_FOUND, "sequence");
  ExpectRefused(Ask(&v1::Worker::Stub::Accept, v1::AcceptRequest()), grpc::StatusCode::NOT_FOUND, "sequence");
  ExpectRefused(Ask(&v1::Worker::Stub::CloseSequence, v1::CloseSequenceRequest()), grpc::StatusCode::NOT_FOUND,
                "sequence");
  ExpectRefused(Ask(&v1::Worker::Stub::Tokenize, v1::TokenizeRequest()), grpc::StatusCode::FAILED_PRECONDITION,
                "model");
  ExpectRefused(End(*stub_, &v1::Worker::Stub::Generate, v1::GenerateRequest()), grpc::StatusCode::FAILED_PRECONDITION,
                "model");
  ExpectInvalid(End(*model_stub_, &v1::Worker::Stub::Generate, v1::GenerateRequest()), "tokens");
  ExpectInvalid(End(*stub_, &v1::Worker::Stub::GetBlocks, v1::GetBlocksRequest()), "tokens");
  ExpectInvalid(End(*stub_, &v1::Worker::Stub::FetchBlocks, v1::FetchBlocksRequest()), "ticket");

  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, v1::RouteRequest()), "");
  EXPECT_THAT(AskCoordinator(&v1::Coordinator::Stub::RouteBatch, v1::RouteBatchRequest()).error_code(),
              AnyOf(grpc::StatusCode::OK, grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_THAT(AskCoordinator(&v1::Coordinator::Stub::Heartbeat, v1::HeartbeatRequest()).error_code(),
              AnyOf(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::ABORTED));
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Complete, v1::CompleteRequest()), "placement_id");
  EXPECT_THAT(AskCoordinator(&v1::Coordinator::Stub::Drain, v1::DrainRequest()).error_code(),
              AnyOf(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::NOT_FOUND));
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Pin, v1::PinRequest()), "");
  EXPECT_THAT(AskCoordinator(&v1::Coordinator::Stub::Unpin, v1::UnpinRequest()).error_code(),
              AnyOf(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::NOT_FOUND));
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Prefetch, v1::PrefetchRequest()), "");
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::ClearIdentity, v1::ClearIdentityRequest()), "identity");
}

TEST_F(MalformedTest, WrongLengthsAndHugeNumbersOfRouteAreRefusedByField) {
  v1::RouteRequest keys;
  Valid(*keys.mutable_identity());
  keys.set_block_keys(std::string(17, 'k'));
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, keys), "block_keys");
  v1::RouteRequest root;
  root.set_root(std::string(15, 'r'));
  root.set_block_keys(std::string(16, 'k'));
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, root), "root");
  v1::RouteRequest both = keys;
  both.set_block_keys(std::string(16, 'k'));
  both.mutable_tokens()->add_ids(1);
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, both), "tokens");
  v1::RouteRequest top = both;
  top.clear_block_keys();
  top.set_top_k(kHuge32);
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, top), "top_k");
  v1::RouteRequest length = keys;
  length.set_block_keys(std::string(16, 'k'));
  length.set_prompt_tokens(kHuge);
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, length), "prompt_tokens");
  v1::RouteRequest many = keys;
  many.clear_block_keys();
  many.mutable_tokens()->mutable_ids()->Resize(10'000'000, 1);
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, many), "tokens");
  v1::RouteRequest text = keys;
  text.mutable_identity()->set_model("\xff\xfe");
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, text), "identity.model");
  v1::RouteBatchRequest batch;
  for (int i = 0; i < 257; ++i) *batch.add_requests() = keys;
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::RouteBatch, batch), "requests");
  v1::CompleteRequest complete;
  complete.set_placement_id(std::string(16, 'x'));
  ExpectRefused(AskCoordinator(&v1::Coordinator::Stub::Complete, complete), grpc::StatusCode::NOT_FOUND, "placement");
  v1::PinRequest pin;
  Valid(*pin.mutable_prefix()->mutable_identity());
  pin.mutable_prefix()->set_block_keys(std::string(16, 'k'));
  pin.set_pin_id("p");
  pin.set_ttl_ms(kHuge);
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Pin, pin), "ttl_ms");
  pin.set_ttl_ms(1000);
  pin.set_pin_id(std::string(129, 'p'));
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Pin, pin), "pin_id");
}

// What a later client tells identities apart by must not be dropped on the way.
TEST_F(MalformedTest, IdentitiesWithUnknownFieldsAreRefused) {
  const auto add = [](google::protobuf::Message& message) {
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(99, 1);
  };
  v1::RouteRequest route;
  Valid(*route.mutable_identity());
  route.set_block_keys(std::string(16, 'k'));
  EXPECT_TRUE(AskCoordinator(&v1::Coordinator::Stub::Route, route).ok());
  v1::OpenSequenceRequest open;
  Valid(*open.mutable_identity());
  open.mutable_tokens()->Resize(20, 1);
  for (v1::CacheIdentity* identity : {route.mutable_identity(), open.mutable_identity()}) add(*identity);
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, route), "identity: unknown field 99");
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, open), "identity: unknown field 99");
  for (v1::CacheIdentity* identity : {route.mutable_identity(), open.mutable_identity()}) {
    identity->DiscardUnknownFields();
    identity->mutable_rope()->set_theta(10000);
    identity->mutable_rope()->set_rotary_dim(16);
    add(*identity->mutable_rope());
  }
  ExpectInvalid(AskCoordinator(&v1::Coordinator::Stub::Route, route), "identity.rope: unknown field 99");
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, open), "identity.rope: unknown field 99");
}

TEST_F(MalformedTest, WrongSequenceCallsAreRefusedByField) {
  v1::OpenSequenceRequest open;
  Valid(*open.mutable_identity());
  open.mutable_tokens()->Resize(10'000'000, 1);
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, open), "tokens");
  open.mutable_tokens()->Resize(20, 1);
  v1::OpenSequenceRequest lease = open;
  lease.set_lease_ms(kHuge);
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, lease), "lease_ms");
  v1::OpenSequenceRequest session = open;
  session.set_session_id(kHuge);
  ExpectRefused(Ask(&v1::Worker::Stub::OpenSequence, session), grpc::StatusCode::NOT_FOUND, "session");
  v1::OpenSequenceRequest sources = open;
  sources.add_sources()->set_block_count(kHuge32);
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, sources), "sources.block_count");
  v1::OpenSequenceRequest text = open;
  text.mutable_identity()->set_cache_salt("\xc0\x80");
  ExpectInvalid(Ask(&v1::Worker::Stub::OpenSequence, text), "identity.cache_salt");

  const auto opened = OpenSequence(
      *stub_,
      [] {
        CacheIdentity identity;
        identity.model = "m";
        identity.block_tokens = kEngineBlockTokens;
        return identity;
      }(),
      std::vector<uint32_t>(20, 1));
  ASSERT_TRUE(opened.ok()) << opened.status();
  v1::AppendKvRequest append;
  append.set_sequence_id(opened->sequence_id());
  append.set_layers(kHuge32);
  append.set_tokens(1);
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "layers");
  append.set_layers(kEngineLayers);
  append.set_first_layer(kHuge32);
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "layers");
  append.set_first_layer(0);
  append.set_tokens(kHuge32);
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "tokens");
  append.set_tokens(1);
  append.set_key("short");
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "key");
  append.set_key(std::string(kEngineLayers * kEngineTokenFloats * 4, '\0'));
  append.set_value(append.key());
  append.set_start_position(kHuge);
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "start_position");
  append.set_start_position(uint64_t{1} << 40);
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "");
  append.set_start_position(0);
  append.set_draft_tokens(kHuge32);
  ExpectInvalid(Ask(&v1::Worker::Stub::AppendKv, append), "draft_tokens");
  v1::AcceptRequest accept;
  accept.set_sequence_id(opened->sequence_id());
  for (const uint64_t tokens : {uint64_t{19}, uint64_t{21}, kHuge}) {
    accept.set_tokens(tokens);
    ExpectInvalid(Ask(&v1::Worker::Stub::Accept, accept), "tokens");
  }
  append.set_sequence_id(kHuge);
  ExpectRefused(Ask(&v1::Worker::Stub::AppendKv, append), grpc::StatusCode::NOT_FOUND, "sequence");
  v1::AttendRequest attend;
  attend.set_sequence_id(opened->sequence_id());
  attend.set_q_heads(3);
  attend.set_tokens(1);
  ExpectInvalid(Ask(&v1::Worker::Stub::Attend, attend), "q_heads");
  attend.set_q_heads(2);
  attend.set_layer(kHuge32);
  ExpectInvalid(Ask(&v1::Worker::Stub::Attend, attend), "layer");
  attend.set_layer(0);
  attend.set_query(std::string(2 * kEngineHeadDim * 4, '\0'));
  attend.set_start_position(kHuge);
  ExpectInvalid(Ask(&v1::Worker::Stub::Attend, attend), "start_position");
  v1::TruncateRequest truncate;
  truncate.set_sequence_id(opened->sequence_id());
  truncate.set_tokens(kHuge);
  ExpectInvalid(Ask(&v1::Worker::Stub::Truncate, truncate), "tokens");
  EXPECT_TRUE(CloseSequence(*stub_, opened->sequence_id()).ok());
}

TEST_F(MalformedTest, GenerationFieldsAreBounded) {
  v1::GenerateRequest good;
  good.mutable_tokens()->Resize(20, 1);
  good.set_max_tokens(2);
  EXPECT_TRUE(End(*model_stub_, &v1::Worker::Stub::Generate, good).ok());
  const auto expect = [&](const std::string& field, const std::function<void(v1::GenerateRequest&)>& spoil) {
    v1::GenerateRequest request = good;
    spoil(request);
    ExpectInvalid(End(*model_stub_, &v1::Worker::Stub::Generate, request), field);
  };
  expect("max_tokens", [](v1::GenerateRequest& r) { r.set_max_tokens(kHuge32); });
  expect("speculate", [](v1::GenerateRequest& r) { r.set_speculate(17); });
  expect("speculate", [](v1::GenerateRequest& r) { r.set_speculate(kHuge32); });
  expect("samples", [](v1::GenerateRequest& r) { r.set_samples(33); });
  expect("samples", [](v1::GenerateRequest& r) { r.set_samples(kHuge32); });
  for (const double bad : {-1.0, 101.0, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    expect("temperature", [&](v1::GenerateRequest& r) { r.set_temperature(bad); });
    expect("top_p", [&](v1::GenerateRequest& r) { r.set_top_p(bad); });
  }
}

TEST_F(MalformedTest, BrokenBlockStreamsPublishNothingButWholeBlocks) {
  CacheIdentity identity;
  identity.model = "m";
  identity.block_tokens = kEngineBlockTokens;
  const std::vector<uint32_t> tokens(48, 5);
  EXPECT_TRUE(absl::IsInvalidArgument(PutBlocks(*stub_, identity, tokens, 3, "").status()));
  EXPECT_TRUE(absl::IsNotFound(PutBlocks(*stub_, identity, tokens, 1, std::string(kEngineBlockBytes, 'x')).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      PutBlocks(*stub_, identity, tokens, 0, std::string(kEngineBlockBytes + 100, 'x')).status()));
  EXPECT_EQ(GetBlocks(*stub_, identity, tokens).blocks, 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(
      PutBlocks(*stub_, identity, tokens, 0, std::string(4 * kEngineBlockBytes, 'x')).status()));
  grpc::ClientContext context;
  v1::PutBlocksResponse response;
  const auto writer = stub_->PutBlocks(&context, &response);
  v1::PutBlocksRequest payload;
  payload.set_payload("before open");
  writer->Write(payload);
  writer->WritesDone();
  ExpectInvalid(writer->Finish(), "open");
}

TEST_F(MalformedTest, ForgedAndExpiredTicketsAreRefused) {
  const auto stats = cluster_->Stats(0);
  ASSERT_TRUE(stats.ok()) << stats.status();
  Ticket ticket;
  ticket.id = TicketId{};
  ticket.sender = cluster_->worker_id(0);
  ticket.sender_incarnation = *Incarnation::FromBytes(stats->incarnation());
  ticket.receiver = "receiver";
  ticket.block_count = 1;
  ticket.expiry = absl::Now() + absl::Seconds(20);
  v1::FetchBlocksRequest fetch;
  fetch.set_receiver_id(ticket.receiver);
  fetch.set_receiver_incarnation(ticket.receiver_incarnation.ToString());
  const auto listed = cluster_->client().ListWorkers();
  ASSERT_TRUE(listed.ok()) << listed.status();
  for (const v1::WorkerStatus& worker : listed->workers()) {
    if (worker.info().worker_id() == ticket.sender) fetch.set_layout_fingerprint(worker.info().layout_fingerprint());
  }
  const auto ask = [&](const std::string& sealed) {
    fetch.set_ticket(sealed);
    return End(*stub_, &v1::Worker::Stub::FetchBlocks, fetch);
  };
  EXPECT_EQ(ask(SealTicket(ticket, DeriveTicketKey("guessed"))).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const TicketKey key = DeriveTicketKey(kSecret);
  EXPECT_EQ(ask(SealTicket(ticket, key)).error_code(), grpc::StatusCode::NOT_FOUND) << "a good one, of no chain";
  EXPECT_EQ(ask(SealTicket(ticket, key)).error_code(), grpc::StatusCode::PERMISSION_DENIED) << "served before";
  ticket.id = *TicketId::FromBytes(std::string(16, 'i'));
  ticket.expiry = absl::Now() - absl::Seconds(1);
  EXPECT_EQ(ask(SealTicket(ticket, key)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ticket.expiry = absl::Now() + absl::Hours(1);
  EXPECT_EQ(ask(SealTicket(ticket, key)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "lives too long";
  ExpectInvalid(ask("not a ticket"), "ticket");
}

// Every method of both services gets random bytes, and valid-looking prefixes of them.
TEST_F(MalformedTest, RandomBytesNeverHurtAProcess) {
  constexpr uint64_t kSeed = 3;
  constexpr int kPerMethod = 40;
  std::printf("seed %lu\n", kSeed);
  std::mt19937_64 random(kSeed);
  const auto fuzz = [&](const google::protobuf::ServiceDescriptor& service,
                        const std::shared_ptr<grpc::Channel>& channel) {
    for (int m = 0; m < service.method_count(); ++m) {
      const std::string method = "/" + service.full_name() + "/" + service.method(m)->name();
      for (int i = 0; i < kPerMethod; ++i) {
        std::string bytes(random() % 200, '\0');
        // Fields 1 to 12 of any wire type come often.
        for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? 8 + random() % 96 : random());
        const grpc::Status status = RawCall(channel, method, bytes, absl::Milliseconds(300)).status;
        EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << method << ": " << status.error_message();
      }
    }
  };
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  fuzz(*pool->FindServiceByName("kvmesh.v1.Coordinator"), channel_);
  for (size_t i = 0; i < 2; ++i) {
    fuzz(*pool->FindServiceByName("kvmesh.v1.Worker"),
         MakeChannel(cluster_->address(i), grpc::InsecureChannelCredentials()));
  }
}

}  // namespace
}  // namespace kvmesh
