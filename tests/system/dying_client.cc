// A client that holds sequences open and does nothing more: a test kills it. Arguments: host:port of a worker whose
// model is deploy/model. Prints "open" once all is open.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "grpcpp/grpcpp.h"
#include "kvmesh/v1/worker.grpc.pb.h"

namespace {

constexpr uint32_t kTokens = 40;
constexpr uint32_t kLayers = 4;
constexpr size_t kAppendBytes = size_t{kLayers} * kTokens * 2 * 32 * sizeof(float);

// Opens a sequence and writes K/V of all its tokens.
bool Open(kvmesh::v1::Worker::Stub& stub, uint32_t number, uint64_t session, uint64_t lease_ms) {
  kvmesh::v1::OpenSequenceRequest open;
  open.mutable_identity()->set_model("dying");
  open.mutable_identity()->set_block_tokens(16);
  for (uint32_t i = 0; i < kTokens; ++i) open.add_tokens(number * 1000 + i);
  open.set_session_id(session);
  open.set_lease_ms(lease_ms);
  kvmesh::v1::OpenSequenceResponse opened;
  grpc::ClientContext open_context;
  if (!stub.OpenSequence(&open_context, open, &opened).ok()) return false;
  if (opened.computed_tokens() > 0) return true;
  kvmesh::v1::AppendKvRequest append;
  append.set_sequence_id(opened.sequence_id());
  append.set_layers(kLayers);
  append.set_tokens(kTokens);
  append.set_key(std::string(kAppendBytes, '\0'));
  append.set_value(std::string(kAppendBytes, '\0'));
  kvmesh::v1::AppendKvResponse appended;
  grpc::ClientContext append_context;
  return stub.AppendKv(&append_context, append, &appended).ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto stub = kvmesh::v1::Worker::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto session = stub->Session(&context);
  kvmesh::v1::SessionResponse response;
  if (!session->Read(&response)) return 1;
  if (!Open(*stub, 1, response.session_id(), 600000) || !Open(*stub, 2, response.session_id(), 600000)) return 1;
  if (!Open(*stub, 3, 0, 700)) return 1;
  std::puts("open");
  std::fflush(stdout);
  while (true) pause();
}
