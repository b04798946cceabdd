#include "worker/server/worker_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/service/log.h"
#include "kvstore/tiers/disk/slab_disk_tier.h"

namespace kvmesh {

absl::StatusOr<std::unique_ptr<WorkerCore>> WorkerCore::Create(const WorkerOptions& options,
                                                               const Incarnation& incarnation,
                                                               std::vector<std::unique_ptr<Transport>> transports) {
  auto core = std::unique_ptr<WorkerCore>(new WorkerCore(options, incarnation));
  KVMESH_RETURN_IF_ERROR(core->LoadModel());
  KVMESH_RETURN_IF_ERROR(core->OpenTiers());
  core->MakeEngine(std::move(transports));
  for (const auto& transport : core->transports_) {
    KVMESH_RETURN_IF_ERROR(transport->RegisterMemory(core->device_->view()));
  }
  return core;
}

WorkerCore::WorkerCore(const WorkerOptions& options, const Incarnation& incarnation)
    : options_(options), incarnation_(incarnation), worker_metrics_(metrics_), layout_(options.layout) {}

WorkerCore::~WorkerCore() {
  if (sequences_ != nullptr) sequences_->CloseAll();
}

absl::Status WorkerCore::LoadModel() {
  if (options_.model_dir.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LlamaModel>> model =
      LlamaModel::Load(options_.model_dir, {.threads = options_.threads});
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  if (model_->config().groups.size() != 1) {
    return absl::InvalidArgumentError("--model: layers with a window beside layers without one are not served");
  }
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Load(options_.model_dir, model_->config().vocab_size);
  if (!vocabulary.ok()) return vocabulary.status();
  vocabulary_ = *std::move(vocabulary);
  layout_ = model_->config().CacheLayout(options_.format, options_.block_tokens);
  return absl::OkStatus();
}

absl::Status WorkerCore::OpenTiers() {
  const absl::StatusOr<LowerLayouts> below = LayoutsBelow(options_, layout_);
  if (!below.ok()) return below.status();
  absl::StatusOr<std::unique_ptr<MemoryPool>> device = MemoryPool::Create(layout_, options_.device_blocks);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  if (options_.host_blocks > 0) {
    absl::StatusOr<std::unique_ptr<MemoryPool>> host = MemoryPool::Create(below->host, options_.host_blocks);
    if (!host.ok()) return host.status();
    host_ = *std::move(host);
  }
  if (!options_.disk_dir.empty()) {
    SlabDiskOptions disk;
    disk.directory = options_.disk_dir;
    disk.disk_id = options_.disk_id.empty() ? options_.worker_id : options_.disk_id;
    disk.layout = ComputeLayoutFingerprint(below->disk);
    disk.pool_layout = ComputeLayoutFingerprint(layout_);
    disk.block_bytes = static_cast<uint64_t>(below->disk.block_bytes);
    disk.byte_cap = options_.disk_bytes;
    disk.free_space_floor_bytes = options_.disk_floor_bytes;
    disk.catalog_reserve_bytes = options_.disk_reserve_bytes;
    const DeferredDiskTier::OpenFn open = [disk,
                                           clock = options_.clock]() -> absl::StatusOr<std::unique_ptr<DiskTier>> {
      return SlabDiskTier::Open(disk, {.io = nullptr, .clock = clock});
    };
    absl::StatusOr<std::unique_ptr<DiskTier>> tier = open();
    if (absl::IsResourceExhausted(tier.status())) {
      Log(LogLevel::kWarning, "worker", "no space for the disk tier: without it until there is",
          {{"directory", disk.directory}, {"error", tier.status().ToString()}});
      auto deferred = std::make_unique<DeferredDiskTier>(open, *options_.clock);
      deferred_disk_ = deferred.get();
      tier = std::move(deferred);
    }
    if (!tier.ok()) return tier.status();
    disk_ = *std::move(tier);
  }
  absl::StatusOr<EvictionPolicyFactory> policy = MakeEvictionPolicyFactory(options_.policy);
  if (!policy.ok()) return policy.status();
  absl::StatusOr<std::unique_ptr<BlockStore>> store =
      BlockStore::Create({.device = device_.get(),
                          .host = host_.get(),
                          .disk = disk_.get(),
                          .disk_layout = below->disk,
                          .clock = options_.clock,
                          .policy = *policy,
                          .max_pinned_fraction = options_.max_pinned_fraction,
                          .block_tokens = static_cast<uint32_t>(layout_.block_tokens),
                          .max_group = 1});
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  groups_ = {ChainGroup(*store_)};
  const int64_t window = model_ == nullptr ? 0 : model_->config().groups[0].window;
  if (window > 0) {
    groups_[0].number = 1;
    groups_[0].window = window;
  }
  return absl::OkStatus();
}

void WorkerCore::MakeEngine(std::vector<std::unique_ptr<Transport>> transports) {
  transports_ = std::move(transports);
  std::vector<Transport*> in_order;
  for (const auto& transport : transports_) in_order.push_back(transport.get());
  const Clock& clock = *options_.clock;
  fetcher_ = std::make_unique<PeerFetcher>(*store_, std::move(in_order), clock, worker_metrics_);
  resumer_ = std::make_unique<Resumer>(*store_, *fetcher_, clock, worker_metrics_, options_.claim_idle);
  sequences_ = std::make_unique<SequenceTable>(options_.sequences, clock);
  pins_ = std::make_unique<NamedPins>(clock);
  if (model_ != nullptr) {
    generator_ = std::make_unique<Generator>(*model_, groups_, *resumer_, clock,
                                             Generator::Options{.sibling_wait = options_.sibling_wait});
  }
}

absl::StatusOr<RootKey> WorkerCore::RootOf(const CacheIdentity& identity) const {
  if (identity.block_tokens != static_cast<uint32_t>(layout_.block_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("identity.block_tokens: ", identity.block_tokens,
                                                   ", this worker's blocks hold ", layout_.block_tokens));
  }
  return DeriveRoot(DeriveTenantSecret(options_.cluster_secret, identity.tenant), ComputeFingerprint(identity));
}

absl::StatusOr<std::vector<CacheGroup>> WorkerCore::Groups(const StreamingPolicy& policy) const {
  if (policy.streams() && groups_[0].window != 0) {
    return absl::InvalidArgumentError("attention_policy: the model has layers with a window of their own");
  }
  return GroupsUnder(policy, groups_);
}

CacheIdentity WorkerCore::OwnIdentity(const std::string& tenant, const std::string& cache_salt,
                                      const std::string& attention_policy) const {
  CacheIdentity identity = ModelIdentity(*model_, layout_);
  identity.tenant = tenant;
  identity.cache_salt = cache_salt;
  identity.attention_policy = attention_policy;
  return identity;
}

void WorkerCore::Housekeep() {
  sequences_->CloseExpired();
  pins_->DropExpired();
  fetcher_->SweepQuarantine();
  store_->FinishErases();
  if (deferred_disk_ == nullptr || !deferred_disk_->TryOpen()) return;
  store_->AdoptRecovered();
  Log(LogLevel::kInfo, "worker", "the disk tier has space and is open",
      {{"directory", options_.disk_dir}, {"blocks", disk_->usage().used_blocks}});
}

}  // namespace kvmesh
