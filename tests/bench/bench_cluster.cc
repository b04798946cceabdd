#include "tests/bench/bench_cluster.h"

#include <random>
#include <utility>

#include "kvstore/block/secrets.h"
#include "tests/bench/bench_support.h"

namespace kvmesh {
namespace {

constexpr absl::Duration kReportTime = absl::Seconds(30);

}  // namespace

BlockLayout TinyLayout() { return CanonicalLayout(KvFormat::kF32, 1, 1, kBenchBlockTokens, 2); }

CacheIdentity BenchIdentity(const std::string& salt) {
  CacheIdentity identity;
  identity.cache_salt = salt;
  identity.model = "bench";
  identity.model_revision = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  identity.numerics = "bf16";
  identity.block_tokens = kBenchBlockTokens;
  return identity;
}

RootKey BenchRoot(const CacheIdentity& identity) {
  return DeriveRoot(DeriveTenantSecret(kBenchSecret, identity.tenant), ComputeFingerprint(identity));
}

std::vector<uint32_t> RandomTokens(uint32_t seed, size_t count, uint32_t vocabulary) {
  std::mt19937 random(seed);
  std::vector<uint32_t> out(count);
  for (uint32_t& token : out) token = static_cast<uint32_t>(random()) % vocabulary;
  return out;
}

void SealChain(BlockStore& store, const RootKey& root, std::span<const BlockKey> keys) {
  BlockKey parent = RootAsParent(root);
  BlockPin parent_pin;  // a block is sealed while its parent is pinned
  for (uint32_t i = 0; i < keys.size(); ++i) {
    parent_pin = Must(store.Seal(Must(store.Allocate()), {.root = root, .key = keys[i], .parent = parent, .index = i}));
    parent = keys[i];
  }
}

WorkerOptions BenchWorkerOptions(const std::string& id) {
  WorkerOptions options;
  options.worker_id = id;
  options.tls.insecure = true;
  options.cluster_secret = kBenchSecret;
  options.block_tokens = kBenchBlockTokens;
  return options;
}

BenchCluster::BenchCluster(std::vector<WorkerOptions> workers) {
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.tls.insecure = true;
  options.cluster_secret = kBenchSecret;
  coordinator_ = Must(CoordinatorServer::Start(options));
  for (WorkerOptions& worker : workers) {
    worker.coordinators = {coordinator_->address()};
    workers_.push_back(Must(WorkerServer::Start(worker)));
  }
  AwaitReported();
}

BenchCluster::~BenchCluster() {
  workers_.clear();
  coordinator_->Stop(absl::ZeroDuration());
}

void BenchCluster::AwaitReported() {
  for (const auto& worker : workers_) Must(worker->WaitReported(kReportTime));
}

}  // namespace kvmesh
