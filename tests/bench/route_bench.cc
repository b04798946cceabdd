// Coordinator.Route over loopback against a bare echo service: calls per second of concurrent callers, and percentiles
// at a load that both keep up with.
//
// The echo has the same server helper, callback API, pooled messages, channel settings and request bytes, and answers
// with as many bytes as Route. For requests of tokens its handler computes the same key chain. Four workers report
// eight long prompts; one holds each to the end, the others half, a quarter and the common beginning.
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"
#include "tests/bench/bench_cluster.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/grpc_probes.h"

namespace kvmesh {
namespace {

constexpr std::array<size_t, 3> kBlocks = {64, 1024, 8192};
constexpr size_t kWorkers = 4;
constexpr size_t kPrompts = 8;
constexpr int kCallers = 4;
constexpr int kOpenCallers = 16;
constexpr double kBar = 0.7;
constexpr double kOpenLoad = 0.35;  // of Route's closed-loop rate

// Stubs to one server, each caller on its own connection, as frontends are.
class Callers {
 public:
  Callers(const std::string& address, int count) {
    for (int i = 0; i < count; ++i) {
      stubs_.push_back(v1::Coordinator::NewStub(MakeChannel(address, grpc::InsecureChannelCredentials())));
    }
  }
  v1::RouteResponse Call(int caller, const v1::RouteRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::RouteResponse response;
    Must(FromGrpcStatus(stubs_[static_cast<size_t>(caller)]->Route(&context, request, &response)));
    return response;
  }

 private:
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;
};

std::vector<WorkerOptions> RouteWorkers(size_t blocks) {
  std::vector<WorkerOptions> out;
  for (size_t i = 0; i < kWorkers; ++i) {
    out.push_back(BenchWorkerOptions(absl::StrCat("worker-", i)));
    out.back().layout = TinyLayout();
    out.back().device_blocks = static_cast<uint32_t>(blocks + 1024);
  }
  return out;
}

// A coordinator that knows the prompts, and the echo.
class RouteWorld {
 public:
  RouteWorld(size_t prompts, size_t longest)
      : identity_(BenchIdentity("route")),
        root_(BenchRoot(identity_)),
        cluster_(RouteWorkers(prompts * longest)),
        echo_(/*pooled=*/true),
        echo_server_({&echo_}),
        route_callers_(cluster_.coordinator_address(), kOpenCallers),
        echo_callers_(echo_server_.address(), kOpenCallers) {
    echo_.ChainFrom(root_);
    const std::array<size_t, kWorkers> held = {longest, longest / 2, longest / 4, kBlocks[0]};
    const std::vector<uint32_t> common = RandomTokens(0, kBlocks[0] * kBenchBlockTokens, 32000);
    for (uint32_t p = 0; p < prompts; ++p) {
      std::vector<uint32_t> tokens = RandomTokens(p + 1, longest * kBenchBlockTokens, 32000);
      std::copy(common.begin(), common.begin() + static_cast<ptrdiff_t>(common.size() / 2), tokens.begin());
      prompts_.push_back(std::move(tokens));
      const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(root_), prompts_.back(), kBenchBlockTokens);
      for (size_t w = 0; w < kWorkers; ++w) {
        // Another worker of the four holds the whole of each prompt.
        SealChain(cluster_.worker((w + p) % kWorkers).core().store(), root_, std::span(keys).first(held[w]));
      }
    }
    cluster_.AwaitReported();
  }

  // The first `blocks` blocks of each prompt as requests.
  void Ask(size_t blocks, bool as_tokens) {
    requests_.clear();
    for (const std::vector<uint32_t>& prompt : prompts_) {
      const std::span<const uint32_t> tokens = std::span(prompt).first(blocks * kBenchBlockTokens);
      v1::RouteRequest& request = requests_.emplace_back();
      IdentityToProto(identity_, *request.mutable_identity());
      if (as_tokens) {
        request.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
      } else {
        const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(root_), tokens, kBenchBlockTokens);
        request.set_block_keys(std::string(KeysToBytes(keys)));
        request.set_prompt_tokens(tokens.size());
      }
      const v1::RouteResponse answer = route_callers_.Call(0, request);
      if (answer.matched_tokens() != tokens.size()) Must(absl::InternalError("a prompt is not found whole"));
      echo_.AnswerLike(answer);
    }
  }

  double Rate(bool echo, absl::Duration window) {
    return ClosedLoop(kCallers, window, [&](int caller) { CallNext(echo, caller); });
  }
  Sample Latencies(bool echo, double rate, absl::Duration window) {
    const std::vector<double> seconds = OpenLoop(rate, kOpenCallers, window, [&](int c) { CallNext(echo, c); });
    return {Percentile(seconds, 0.5), Percentile(seconds, 0.99)};
  }

 private:
  void CallNext(bool echo, int caller) {
    (echo ? echo_callers_ : route_callers_).Call(caller, requests_[next_++ % requests_.size()]);
  }

  const CacheIdentity identity_;
  const RootKey root_;
  BenchCluster cluster_;
  EchoService echo_;
  ProbeServer echo_server_;
  Callers route_callers_;
  Callers echo_callers_;
  std::vector<std::vector<uint32_t>> prompts_;
  std::vector<v1::RouteRequest> requests_;
  std::atomic<size_t> next_{0};
};

int Run(const BenchOptions& options) {
  Report report("route_bench", options);
  const absl::Duration rate_window = options.window(absl::Milliseconds(70));
  const absl::Duration latency_window = options.window(absl::Milliseconds(130));
  RouteWorld world(options.quick ? 1 : kPrompts, options.quick ? kBlocks[1] : kBlocks.back());
  for (const bool as_tokens : {false, true}) {
    for (const size_t blocks : kBlocks) {
      if (options.quick && blocks > kBlocks[1]) continue;
      world.Ask(blocks, as_tokens);
      const std::string form = absl::StrCat(as_tokens ? "tokens" : "keys", ", ", blocks, " blocks");
      const std::string probe = as_tokens ? "echo + key chain" : "echo";
      const Comparison rate = Alternate(
          options.rounds(7), [&] { return Sample{world.Rate(false, rate_window)}; },
          [&] { return Sample{world.Rate(true, rate_window)}; });
      report.Add(form, "calls/s", 1, probe, rate, 0, kBar);
      const double load = kOpenLoad * rate.value[0];
      const Comparison latency = Alternate(
          options.rounds(5), [&] { return world.Latencies(false, load, latency_window); },
          [&] { return world.Latencies(true, load, latency_window); });
      report.Add(absl::StrCat(form, ", p50"), "us", 1e6, probe, latency, 0);
      report.Add(absl::StrCat(form, ", p99"), "us", 1e6, probe, latency, 1);
    }
  }
  report.Note(absl::StrCat("calls/s: ", kCallers, " callers that call again at once. p50, p99: open loop at ",
                           kOpenLoad, " of Route's calls/s."));
  return report.Finish();
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  return kvmesh::Run(kvmesh::ParseBenchOptions(argc, argv, "Coordinator.Route against a bare gRPC echo"));
}
