// Time to first token through the client library, two workers with the shipped model behind a coordinator, over
// loopback in one process. The clock runs from GenerateOnCluster's call to its first token.
//
//   cold        nobody holds the prompt. Probe: a bare prefill of it in passes of 256 tokens.
//   warm-local  its worker holds it. Probe: one bare forward pass of the last token over the same context.
//   warm-peer   the other worker holds it. Probe: that pass and a bare gRPC stream of the blocks' bytes.
// KVMESH_SOURCE_DIR names the tree; without it the current directory is.
#include <grpcpp/security/credentials.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/generate.h"
#include "kvstore/pool/block_pool.h"
#include "tests/bench/bench_cluster.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/grpc_probes.h"
#include "worker/model/llama_model.h"

namespace kvmesh {
namespace {

constexpr std::array<size_t, 2> kPrompts = {1024, 4096};  // tokens
constexpr int64_t kPassTokens = 256;
constexpr int kWarmRuns = 3;

std::string ModelFolder() {
  const char* source = std::getenv("KVMESH_SOURCE_DIR");
  return absl::StrCat(source == nullptr ? "." : source, "/deploy/model");
}

std::vector<WorkerOptions> TtftWorkers() {
  std::vector<WorkerOptions> out;
  for (const char* id : {"worker-0", "worker-1"}) {
    out.push_back(BenchWorkerOptions(id));
    out.back().model_dir = ModelFolder();
  }
  return out;
}

// The model on memory of its own: no cache, no server.
class BareModel {
 public:
  BareModel()
      : model_(Must(LlamaModel::Load(ModelFolder(), {.threads = 1}))),
        layout_(model_->config().CacheLayout(KvFormat::kF32, kBenchBlockTokens)),
        pool_(Must(MemoryPool::Create(layout_, kPrompts.back() / kBenchBlockTokens))),
        block_table_(pool_->capacity()) {
    std::iota(block_table_.begin(), block_table_.end(), 0u);
  }

  int64_t block_bytes() const { return layout_.block_bytes; }
  void Prefill(std::span<const uint32_t> tokens) {
    for (size_t at = 0; at < tokens.size(); at += kPassTokens) {
      const std::span<const uint32_t> part = tokens.subspan(at, std::min<size_t>(kPassTokens, tokens.size() - at));
      std::vector<int64_t> slots(part.size());
      std::iota(slots.begin(), slots.end(), static_cast<int64_t>(at));
      Pass(part, at, slots, at + part.size() == tokens.size());
    }
  }
  // The last token again, over what Prefill left.
  void LastToken(std::span<const uint32_t> tokens) {
    Pass(tokens.last(1), tokens.size() - 1, std::vector<int64_t>{-1}, true);
  }

 private:
  void Pass(std::span<const uint32_t> tokens, size_t at, const std::vector<int64_t>& slots, bool want_logits) {
    const ForwardSequence part = {.tokens = tokens,
                                  .first_position = static_cast<int64_t>(at),
                                  .groups = {{slots, block_table_}},
                                  .logits = want_logits ? LogitsWanted::kLast : LogitsWanted::kNone};
    Must(model_->Forward({&part, 1}, {&pool_->view(), 1}));
  }

  const std::unique_ptr<LlamaModel> model_;
  const BlockLayout layout_;
  const std::unique_ptr<MemoryPool> pool_;
  std::vector<uint32_t> block_table_;  // block i is i: a position is its slot
};

class TtftWorld {
 public:
  TtftWorld()
      : cluster_(TtftWorkers()),
        client_(Must(Client::Create({.coordinators = {cluster_.coordinator_address()},
                                     .tls = {.insecure = true},
                                     .tenant_secret = DeriveTenantSecret(kBenchSecret, "")}))),
        stream_(static_cast<size_t>(bare_.block_bytes())),
        stream_server_({&stream_}),
        stream_channel_(MakeChannel(stream_server_.address(), grpc::InsecureChannelCredentials())) {
    std::stringstream text;
    text << std::ifstream(absl::StrCat(ModelFolder(), "/heldout.txt"), std::ios::binary).rdbuf();
    tokens_ = cluster_.worker(0).core().vocabulary()->Encode(text.str());
    if (tokens_.size() < kPrompts.back()) Must(absl::InternalError("heldout.txt: too short"));
    tokens_.resize(kPrompts.back());
  }

  // Seconds to the first token: cold, warm-local, warm-peer. Each call is of a prompt of its own.
  Sample Generate(size_t tokens) {
    const std::string salt = absl::StrCat("salt ", ++salts_);
    Sample out = {FirstToken(tokens, salt, 0, {})};
    cluster_.AwaitReported();
    std::vector<double> warm;
    v1::HitTokens local;
    local.set_device(tokens);
    for (int i = 0; i < kWarmRuns; ++i) warm.push_back(FirstToken(tokens, salt, 0, local));
    out.push_back(Percentile(warm, 0.5));
    v1::HitTokens peer;
    peer.set_peer(tokens);
    out.push_back(FirstToken(tokens, salt, 1, peer));
    return out;
  }

  // The probes of Generate's figures, in its order.
  Sample Probe(size_t count) {
    const std::span<const uint32_t> tokens = std::span(tokens_).first(count);
    const double start = SecondsNow();
    bare_.Prefill(tokens);
    Sample out = {SecondsNow() - start};
    std::vector<double> last;
    for (int i = 0; i < kWarmRuns; ++i) {
      const double began = SecondsNow();
      bare_.LastToken(tokens);
      last.push_back(SecondsNow() - began);
    }
    out.push_back(Percentile(last, 0.5));
    const double began = SecondsNow();
    DrainRawStream(stream_channel_, static_cast<uint32_t>(count / kBenchBlockTokens));
    bare_.LastToken(tokens);
    out.push_back(SecondsNow() - began);
    return out;
  }

 private:
  double FirstToken(size_t tokens, const std::string& salt, size_t worker, const v1::HitTokens& expected) {
    ClusterGenerateRequest request;
    request.tokens.assign(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(tokens));
    request.max_tokens = 1;
    request.cache_salt = salt;
    request.worker_id = absl::StrCat("worker-", worker);
    double first = 0;
    request.on_token = [&first](uint32_t, const std::string&) { first = first == 0 ? SecondsNow() : first; };
    const double start = SecondsNow();
    const ClusterGenerateResult result = Must(GenerateOnCluster(*client_, request));
    if (first == 0) Must(absl::InternalError("no token came"));
    if (result.hits.SerializeAsString() != expected.SerializeAsString()) {
      Must(absl::InternalError(
          absl::StrCat("hits ", result.hits.ShortDebugString(), " instead of ", expected.ShortDebugString())));
    }
    return first - start;
  }

  BenchCluster cluster_;
  const std::unique_ptr<Client> client_;
  BareModel bare_;
  RawStreamService stream_;
  ProbeServer stream_server_;
  const std::shared_ptr<grpc::Channel> stream_channel_;
  std::vector<uint32_t> tokens_;
  int salts_ = 0;
};

int Run(const BenchOptions& options) {
  Report report("ttft_bench", options);
  TtftWorld world;
  const std::array<std::pair<const char*, const char*>, 3> names = {{
      {"cold", "bare prefill"},
      {"warm-local", "bare last token"},
      {"warm-peer", "byte stream + last token"},
  }};
  for (const size_t tokens : kPrompts) {
    if (options.quick && tokens > kPrompts[0]) continue;
    const Comparison ttft = Alternate(
        options.rounds(9), [&] { return world.Generate(tokens); }, [&] { return world.Probe(tokens); });
    for (size_t i = 0; i < names.size(); ++i) {
      report.Add(absl::StrCat(names[i].first, ", ", tokens, " tokens"), "ms", 1e3, names[i].second, ttft, i);
    }
    report.Note(absl::StrCat(tokens, " tokens: cold / warm-local = ", ttft.value[0] / ttft.value[1],
                             ", cold / warm-peer = ", ttft.value[0] / ttft.value[2]));
  }
  return report.Finish();
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  return kvmesh::Run(kvmesh::ParseBenchOptions(argc, argv, "Time to first token: cold, warm here, warm at a peer"));
}
