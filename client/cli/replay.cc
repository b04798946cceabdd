#include "client/cli/replay.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "coordinator/server/coordinator_server.h"
#include "kvstore/base/clock.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/tiers/disk/slab_disk_options.h"
#include "worker/server/decode.h"
#include "worker/server/worker_server.h"

namespace kvmesh {
namespace {

constexpr absl::Duration kLoadTimeout = absl::Seconds(60);
constexpr absl::Duration kReportTimeout = absl::Seconds(30);
// Of each worker: a busy fleet at the trace's own pace.
constexpr double kPrefillTokensPerSecond = 20000;
constexpr int kMaxReplayWorkers = 64;
constexpr uint64_t kMaxReplayBlockBytes = uint64_t{1} << 24;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The tokens that a hash id stands for.
void AppendTokens(uint64_t id, std::vector<uint32_t>& tokens) {
  for (uint32_t i = 0; i < kMooncakeBlockTokens; ++i) {
    tokens.push_back(static_cast<uint32_t>(Mix(id * kMooncakeBlockTokens + i)));
  }
}

// The bytes that a hash id stands for.
void FillBytes(uint64_t id, std::span<std::byte> out) {
  const uint64_t seed = Mix(~id);
  for (size_t at = 0; at < out.size(); at += sizeof(uint64_t)) {
    const uint64_t word = Mix(seed + at);
    std::memcpy(out.data() + at, &word, std::min(sizeof(word), out.size() - at));
  }
}

// A folder under the system's temporary one, removed at the end.
class ScratchFolder {
 public:
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Create() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvmesh_replay_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) return absl::UnavailableError(absl::StrCat("cannot create ", pattern));
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(pattern));
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// The cluster and one pass over the trace.
class Replayer {
 public:
  Replayer(const std::vector<TraceRequest>& trace, const ReplayOptions& options)
      : trace_(trace), options_(options), start_(absl::Now()), clock_(start_) {}

  absl::StatusOr<ReplayResult> Run() {
    KVMESH_RETURN_IF_ERROR(StartCluster());
    const absl::Time began = absl::Now();
    for (size_t i = 0; i < trace_.size(); ++i) {
      if (options_.cancelled && options_.cancelled()) {
        return absl::CancelledError(absl::StrCat("replay: ended after ", i, " of ", trace_.size(), " requests"));
      }
      KVMESH_RETURN_IF_ERROR(Play(i));
      if (options_.progress) options_.progress(i + 1, trace_.size());
    }
    result_.requests = trace_.size();
    result_.seconds = absl::ToDoubleSeconds(absl::Now() - began);
    return result_;
  }

 private:
  absl::Status StartCluster() {
    if (options_.capacity[2]) {
      absl::StatusOr<std::unique_ptr<ScratchFolder>> scratch = ScratchFolder::Create();
      if (!scratch.ok()) return scratch.status();
      scratch_ = *std::move(scratch);
    }
    CoordinatorOptions coordinator;
    coordinator.listen = "127.0.0.1:0";
    coordinator.tls.insecure = true;
    // Requests run one after the other here; their load on the workers stands as long as the trace's time says.
    coordinator.placement_clock = &clock_;
    absl::StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::Start(coordinator);
    if (!server.ok()) return server.status();
    coordinator_ = *std::move(server);
    absl::flat_hash_set<uint64_t> distinct;
    for (const TraceRequest& request : trace_) distinct.insert(request.hash_ids.begin(), request.hash_ids.end());
    for (int i = 0; i < options_.workers; ++i) {
      absl::StatusOr<std::unique_ptr<WorkerServer>> worker = WorkerServer::Start(OptionsOf(i, distinct.size()));
      if (!worker.ok()) return worker.status();
      workers_.push_back(*std::move(worker));
      KVMESH_RETURN_IF_ERROR(workers_.back()->WaitReported(kReportTimeout));
    }
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create({.coordinators = {coordinator_->address()},
                                                                     .tls = {.insecure = true},
                                                                     .tenant_secret = DeriveTenantSecret("", "")});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    return absl::OkStatus();
  }

  WorkerOptions OptionsOf(int i, uint64_t distinct) const {
    const auto blocks = [&](std::optional<uint64_t> capacity) -> uint32_t {
      if (!capacity) return 0;
      const uint64_t all = distinct + 1;  // room for all of them is unlimited
      return static_cast<uint32_t>(*capacity == 0 ? all : std::min(*capacity, all));
    };
    WorkerOptions options;
    options.worker_id = absl::StrCat("worker-", i);
    options.tls.insecure = true;
    options.coordinators = {coordinator_->address()};
    options.layout = CanonicalLayout(KvFormat::kF32, 1, 1, kMooncakeBlockTokens, 1);
    options.layout.block_bytes = static_cast<int64_t>(options_.block_bytes);
    options.device_blocks = blocks(options_.capacity[0]);
    options.host_blocks = blocks(options_.capacity[1]);
    if (options_.capacity[2]) {
      options.disk_dir = absl::StrCat(scratch_->path(), "/", options.worker_id);
      options.disk_bytes = *options_.capacity[2] * SlotBytes(options_.block_bytes);
    }
    options.policy = options_.policy;
    options.max_pinned_fraction = 1.0;
    options.prefill_tokens_per_second = kPrefillTokensPerSecond;
    return options;
  }

  absl::Status Play(size_t i) {
    const TraceRequest& request = trace_[i];
    result_.blocks += request.hash_ids.size();
    clock_.AdvanceTo(start_ + absl::Milliseconds(request.timestamp_ms));
    if (request.hash_ids.empty()) return absl::OkStatus();
    std::vector<uint32_t> tokens;
    tokens.reserve(request.hash_ids.size() * kMooncakeBlockTokens);
    for (const uint64_t id : request.hash_ids) AppendTokens(id, tokens);

    Client::RouteOptions where;
    if (options_.round_robin) where.worker_id = absl::StrCat("worker-", i % workers_.size());
    const absl::StatusOr<v1::RouteResponse> route = client_->Route(identity_, tokens, where);
    if (!route.ok()) return route.status();
    ++result_.requests_by_worker[route->worker_id()];
    const auto worker = std::find_if(workers_.begin(), workers_.end(), [&](const auto& candidate) {
      return candidate->core().options().worker_id == route->worker_id();
    });
    if (worker == workers_.end()) return absl::InternalError("the coordinator placed on an unknown worker");
    KVMESH_RETURN_IF_ERROR(RunOn((*worker)->core(), request, tokens, *route));
    return (*worker)->WaitReported(kReportTimeout);
  }

  // Resumes what can be had, checks it, and stores the rest.
  absl::Status RunOn(WorkerCore& core, const TraceRequest& request, const std::vector<uint32_t>& tokens,
                     const v1::RouteResponse& route) {
    const absl::StatusOr<RootKey> root = core.RootOf(identity_);
    if (!root.ok()) return root.status();
    const absl::StatusOr<std::vector<PeerSource>> sources = SourcesFromProto(route.sources());
    if (!sources.ok()) return sources.status();
    const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(*root), tokens, kMooncakeBlockTokens);
    const CacheGroup chain = ChainGroup(core.store());
    ResumeResult resumed = core.resumer().Resume({.groups = {&chain, 1},
                                                  .root = *root,
                                                  .keys = keys,
                                                  .sources = *sources,
                                                  .accepted = LossyFormats(),
                                                  .deadline = absl::Now() + kLoadTimeout,
                                                  .sibling_deadline = absl::InfinitePast()});
    result_.hit_blocks += resumed.blocks();
    for (const HitSource source : resumed.found_in) ++result_.hits[static_cast<size_t>(source)];
    std::vector<BlockPin> pins = resumed.TakePins();
    if (options_.verify) Verify(core, request, pins);
    return Store(core, *root, keys, request, pins);
  }

  void Verify(WorkerCore& core, const TraceRequest& request, std::span<const BlockPin> pins) {
    std::vector<std::byte> want(options_.block_bytes);
    for (size_t i = 0; i < pins.size(); ++i) {
      FillBytes(request.hash_ids[i], want);
      const std::span<const std::byte> got = core.store().BytesInPlace(pins[i]);
      result_.bytes_verified += want.size();
      if (!std::equal(want.begin(), want.end(), got.begin(), got.end())) ++result_.mismatches;
    }
  }

  // Stops where the pool has no room left beside the request's own blocks.
  absl::Status Store(WorkerCore& core, const RootKey& root, std::span<const BlockKey> keys, const TraceRequest& request,
                     std::vector<BlockPin>& pins) {
    for (size_t i = pins.size(); i < keys.size(); ++i) {
      absl::StatusOr<PrivateBlock> block = core.store().Allocate();
      if (absl::IsResourceExhausted(block.status())) break;
      if (!block.ok()) return block.status();
      FillBytes(request.hash_ids[i], core.store().device().bytes(block->block()));
      absl::StatusOr<BlockPin> pin =
          core.store().Seal(*std::move(block), {.root = root,
                                                .key = keys[i],
                                                .parent = i == 0 ? RootAsParent(root) : keys[i - 1],
                                                .index = static_cast<uint32_t>(i),
                                                .lossy_formats = LossyFormats()});
      if (!pin.ok()) return pin.status();
      pins.push_back(*std::move(pin));
    }
    return absl::OkStatus();
  }

  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  const absl::Time start_;
  ManualClock clock_;
  CacheIdentity identity_ = {.model = "replay", .block_tokens = kMooncakeBlockTokens};
  std::unique_ptr<ScratchFolder> scratch_;
  std::unique_ptr<CoordinatorServer> coordinator_;
  std::vector<std::unique_ptr<WorkerServer>> workers_;
  std::unique_ptr<Client> client_;
  ReplayResult result_;
};

absl::Status Check(const ReplayOptions& options) {
  if (options.workers < 1 || options.workers > kMaxReplayWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("--workers: must be 1 to ", kMaxReplayWorkers));
  }
  if (options.block_bytes < 1 || options.block_bytes > kMaxReplayBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--block-bytes: must be 1 to ", kMaxReplayBlockBytes));
  }
  if (!options.capacity[0]) return absl::InvalidArgumentError("--capacity-blocks: the device tier can't be left out");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReplayResult> Replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  KVMESH_RETURN_IF_ERROR(Check(options));
  return Replayer(trace, options).Run();
}

}  // namespace kvmesh
