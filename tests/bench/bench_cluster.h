// Workers and a coordinator in this process, as the programs run them, talking over loopback.
#ifndef KVMESH_TESTS_BENCH_BENCH_CLUSTER_H_
#define KVMESH_TESTS_BENCH_BENCH_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/server/coordinator_server.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/tiers/block_store.h"
#include "worker/server/worker_core.h"
#include "worker/server/worker_server.h"

namespace kvmesh {

inline constexpr char kBenchSecret[] = "bench";
inline constexpr uint32_t kBenchBlockTokens = 16;

// Blocks of 256 bytes: where only keys and tables matter.
BlockLayout TinyLayout();
// An identity for them; `salt` gives chains of their own.
CacheIdentity BenchIdentity(const std::string& salt);
// Its root under kBenchSecret.
RootKey BenchRoot(const CacheIdentity& identity);

// Seeded ids below `vocabulary`.
std::vector<uint32_t> RandomTokens(uint32_t seed, size_t count, uint32_t vocabulary);

// Seals a chain's blocks, content as it happens to be, as an engine that computed them would.
void SealChain(BlockStore& store, const RootKey& root, std::span<const BlockKey> keys);

// Options of an insecure worker on a free port of loopback.
WorkerOptions BenchWorkerOptions(const std::string& id);

// One coordinator and its workers. Ends with the object.
class BenchCluster {
 public:
  // The workers' `coordinators` are filled in.
  explicit BenchCluster(std::vector<WorkerOptions> workers);
  ~BenchCluster();

  const std::string& coordinator_address() const { return coordinator_->address(); }
  WorkerServer& worker(size_t i) { return *workers_[i]; }
  size_t workers() const { return workers_.size(); }
  // Waits until the coordinator has applied all that the workers hold.
  void AwaitReported();

 private:
  std::unique_ptr<CoordinatorServer> coordinator_;
  std::vector<std::unique_ptr<WorkerServer>> workers_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_BENCH_BENCH_CLUSTER_H_
