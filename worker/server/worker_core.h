// One worker without its server: pools, tiers, engine and model, put together and taken apart in order.
#ifndef KVMESH_WORKER_SERVER_WORKER_CORE_H_
#define KVMESH_WORKER_SERVER_WORKER_CORE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/block/secrets.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/peer_fetcher.h"
#include "worker/engine/resumer.h"
#include "worker/engine/sequence_table.h"
#include "worker/generate/generator.h"
#include "worker/model/llama_model.h"
#include "worker/model/vocabulary.h"
#include "worker/server/group_tiers.h"
#include "worker/server/named_pins.h"
#include "worker/server/worker_metrics.h"
#include "worker/server/worker_options.h"
#include "worker/transport/transport.h"

namespace kvmesh {

// Thread safe once made. `transports` may be empty (a worker on its own).
class WorkerCore {
 public:
  // INVALID_ARGUMENT naming the option; errors of the model and of the disk tier name the file.
  static absl::StatusOr<std::unique_ptr<WorkerCore>> Create(const WorkerOptions& options,
                                                            const Incarnation& incarnation,
                                                            std::vector<std::unique_ptr<Transport>> transports);
  ~WorkerCore();

  const WorkerOptions& options() const { return options_; }
  const Incarnation& incarnation() const { return incarnation_; }
  // Of the first layer group: the chain's, unless every layer has a window.
  BlockStore& store() { return tiers_[0]->store(); }
  // Where blocks of a layer group are; null: there is no such group.
  BlockStore* StoreOf(uint32_t group);
  PeerFetcher& fetcher() { return *fetcher_; }
  Resumer& resumer() { return *resumer_; }
  // Of a sequence under that policy. INVALID_ARGUMENT naming attention_policy: layers have a window of their own, or
  // attend over latents.
  absl::StatusOr<std::vector<CacheGroup>> Groups(const StreamingPolicy& policy) const;
  SequenceTable& sequences() { return *sequences_; }
  NamedPins& pins() { return *pins_; }
  Metrics& metrics() { return metrics_; }
  WorkerMetrics& worker_metrics() { return worker_metrics_; }
  // Null without a model.
  Generator* generator() { return generator_.get(); }
  const Vocabulary* vocabulary() const { return vocabulary_ ? &*vocabulary_ : nullptr; }

  // After which blocks sequences of this worker can go on, as it reports them.
  v1::Boundaries boundary_rule() const;
  // The root of an identity; a pool holds blocks of one block size. INVALID_ARGUMENT naming identity.block_tokens.
  absl::StatusOr<RootKey> RootOf(const CacheIdentity& identity) const;
  // The identity of the model's own cache. REQUIRES: generator() != null.
  CacheIdentity OwnIdentity(const std::string& tenant, const std::string& cache_salt,
                            const std::string& attention_policy = "") const;

  // Of all layer groups; the digests are the chain's.
  BlockStore::Books GetBooks() const;
  // Layers of a sequence, over all groups.
  int32_t layers() const;
  // As BlockStore has them, for every layer group.
  uint64_t EraseIdentity(const RootKey& root);
  void FlushToDisk(absl::Time deadline);

  void SetDraining(bool draining) { draining_.store(draining); }
  // Drains for good.
  void BeginStop() { stopping_.store(true); }
  bool draining() const { return draining_.load() || stopping_.load(); }

  // Closes what expired, frees what became quiescent, and opens a disk that had no space. Called every fraction of a
  // second.
  void Housekeep();

 private:
  WorkerCore(const WorkerOptions& options, const Incarnation& incarnation);
  absl::Status LoadModel();
  absl::Status OpenTiers();
  // Of every layer group that has layers.
  std::vector<GroupPool> Pools() const;
  void MakeEngine(std::vector<std::unique_ptr<Transport>> transports);

  const WorkerOptions options_;
  const Incarnation incarnation_;
  Metrics metrics_;
  WorkerMetrics worker_metrics_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};

  // In order of dependence: each uses those above it.
  std::unique_ptr<LlamaModel> model_;
  std::optional<Vocabulary> vocabulary_;
  std::unique_ptr<WindowBoundaries> boundaries_;    // where some layers have a window
  std::vector<std::unique_ptr<GroupTiers>> tiers_;  // by layer group
  std::vector<CacheGroup> groups_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::unique_ptr<PeerFetcher> fetcher_;
  std::unique_ptr<Resumer> resumer_;
  std::unique_ptr<SequenceTable> sequences_;
  std::unique_ptr<NamedPins> pins_;
  std::unique_ptr<Generator> generator_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_WORKER_CORE_H_
