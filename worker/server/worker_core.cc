#include "worker/server/worker_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {

absl::StatusOr<std::unique_ptr<WorkerCore>> WorkerCore::Create(const WorkerOptions& options,
                                                               const Incarnation& incarnation,
                                                               std::vector<std::unique_ptr<Transport>> transports) {
  auto core = std::unique_ptr<WorkerCore>(new WorkerCore(options, incarnation));
  KVMESH_RETURN_IF_ERROR(core->LoadModel());
  KVMESH_RETURN_IF_ERROR(core->OpenTiers());
  core->MakeEngine(std::move(transports));
  for (const auto& transport : core->transports_) {
    for (const auto& tiers : core->tiers_) {
      KVMESH_RETURN_IF_ERROR(transport->RegisterMemory(tiers->device().view()));
    }
  }
  return core;
}

WorkerCore::WorkerCore(const WorkerOptions& options, const Incarnation& incarnation)
    : options_(options), incarnation_(incarnation), worker_metrics_(metrics_) {}

WorkerCore::~WorkerCore() {
  if (sequences_ != nullptr) sequences_->CloseAll();
}

absl::Status WorkerCore::LoadModel() {
  if (options_.model_dir.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LlamaModel>> model =
      LlamaModel::Load(options_.model_dir, {.threads = options_.threads});
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Load(options_.model_dir, model_->config().vocab_size);
  if (!vocabulary.ok()) return vocabulary.status();
  vocabulary_ = *std::move(vocabulary);
  return absl::OkStatus();
}

absl::Status WorkerCore::OpenTiers() {
  const std::vector<GroupPool> pools = Pools();
  double bytes = 0;
  for (const GroupPool& pool : pools) {
    bytes += static_cast<double>(pool.layout.block_bytes);
    if (pool.group.window == 0) continue;
    if (boundaries_ != nullptr) return absl::InvalidArgumentError("model: layers with windows of several lengths");
    boundaries_ = std::make_unique<WindowBoundaries>(
        WindowBlocks(pool.group.window, static_cast<uint32_t>(pool.layout.block_tokens)));
  }
  for (size_t i = 0; i < pools.size(); ++i) {
    const double share = static_cast<double>(pools[i].layout.block_bytes) / bytes;
    GroupTiers::Place place{.layout = pools[i].layout,
                            .disk_dir = options_.disk_dir,
                            .disk_bytes = options_.disk_bytes,
                            .boundaries = boundaries_.get()};
    // A cap stays one, however small: 0 would be none.
    if (pools.size() > 1 && options_.disk_bytes > 0) {
      place.disk_bytes = std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(options_.disk_bytes) * share));
    }
    if (i > 0 && !place.disk_dir.empty()) absl::StrAppend(&place.disk_dir, "/group-", i);
    absl::StatusOr<std::unique_ptr<GroupTiers>> tiers = GroupTiers::Open(options_, place);
    if (!tiers.ok()) return tiers.status();
    tiers_.push_back(*std::move(tiers));
    groups_.push_back({.store = &tiers_.back()->store(),
                       .number = pools[i].group.window > 0 ? 1u : 0u,
                       .window = pools[i].group.window,
                       .layers = pools[i].group.layers});
  }
  if (boundaries_ != nullptr) boundaries_->ReportTo(store().events());
  return absl::OkStatus();
}

std::vector<GroupPool> WorkerCore::Pools() const {
  if (model_ == nullptr) return EnginePools(options_);
  std::vector<GroupPool> pools;
  const LlamaConfig& config = model_->config();
  for (size_t i = 0; i < config.groups.size(); ++i) {
    pools.push_back({config.groups[i], config.CacheLayout(options_.format, options_.block_tokens, i)});
  }
  return pools;
}

void WorkerCore::MakeEngine(std::vector<std::unique_ptr<Transport>> transports) {
  transports_ = std::move(transports);
  std::vector<Transport*> in_order;
  for (const auto& transport : transports_) in_order.push_back(transport.get());
  const Clock& clock = *options_.clock;
  fetcher_ = std::make_unique<PeerFetcher>(std::move(in_order), clock, worker_metrics_);
  resumer_ = std::make_unique<Resumer>(store(), *fetcher_, clock, worker_metrics_, options_.claim_idle);
  sequences_ = std::make_unique<SequenceTable>(options_.sequences, clock);
  pins_ = std::make_unique<NamedPins>(clock);
  if (model_ != nullptr) {
    generator_ = std::make_unique<Generator>(*model_, groups_, *resumer_, clock,
                                             Generator::Options{.sibling_wait = options_.sibling_wait});
  }
}

absl::StatusOr<RootKey> WorkerCore::RootOf(const CacheIdentity& identity) const {
  const int32_t block_tokens = tiers_[0]->device().layout().block_tokens;
  if (identity.block_tokens != static_cast<uint32_t>(block_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity.block_tokens: ", identity.block_tokens, ", this worker's blocks hold ", block_tokens));
  }
  return DeriveRoot(DeriveTenantSecret(options_.cluster_secret, identity.tenant), ComputeFingerprint(identity));
}

absl::StatusOr<std::vector<CacheGroup>> WorkerCore::Groups(const StreamingPolicy& policy) const {
  if (policy.streams() && groups_.back().window != 0) {
    return absl::InvalidArgumentError("attention_policy: the model has layers with a window of their own");
  }
  if (policy.streams() && tiers_[0]->device().layout().mla()) {
    return absl::InvalidArgumentError("attention_policy: not for latent attention (MLA)");
  }
  return GroupsUnder(policy, groups_);
}

CacheIdentity WorkerCore::OwnIdentity(const std::string& tenant, const std::string& cache_salt,
                                      const std::string& attention_policy) const {
  CacheIdentity identity = ModelIdentity(*model_, tiers_[0]->device().layout());
  identity.tenant = tenant;
  identity.cache_salt = cache_salt;
  identity.attention_policy = attention_policy;
  return identity;
}

void WorkerCore::Housekeep() {
  sequences_->CloseExpired();
  pins_->DropExpired();
  fetcher_->SweepQuarantine();
  for (const auto& tiers : tiers_) tiers->Housekeep();
}

BlockStore::Books WorkerCore::GetBooks() const {
  BlockStore::Books books = tiers_[0]->store().GetBooks();
  for (size_t i = 1; i < tiers_.size(); ++i) books.Add(tiers_[i]->store().GetBooks());
  return books;
}

BlockStore* WorkerCore::StoreOf(uint32_t group) {
  if (group > 1) return nullptr;
  return &tiers_[group == 0 ? 0 : tiers_.size() - 1]->store();
}

v1::Boundaries WorkerCore::boundary_rule() const {
  if (boundaries_ == nullptr) return v1::BOUNDARIES_UNSPECIFIED;
  return groups_[0].number == 0 ? v1::BOUNDARIES_USABLE : v1::BOUNDARIES_USABLE_ALONE;
}

int32_t WorkerCore::layers() const {
  size_t layers = 0;
  for (const CacheGroup& group : groups_) layers += group.layers.size();
  return static_cast<int32_t>(layers);
}

uint64_t WorkerCore::EraseIdentity(const RootKey& root) {
  uint64_t blocks = 0;
  for (const auto& tiers : tiers_) blocks += tiers->store().EraseIdentity(root);
  return blocks;
}

void WorkerCore::FlushToDisk(absl::Time deadline) {
  for (const auto& tiers : tiers_) tiers->store().FlushToDisk(deadline);
}

}  // namespace kvmesh
