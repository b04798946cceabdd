// Everything a worker process is told.
#ifndef KVMESH_WORKER_SERVER_WORKER_OPTIONS_H_
#define KVMESH_WORKER_SERVER_WORKER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/layout.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/status.h"
#include "kvstore/service/members.h"
#include "kvstore/service/tls.h"
#include "worker/engine/sequence_table.h"
#include "worker/model/model_shape.h"

namespace kvmesh {

// Elements of a row that Attend takes: of a K/V head, and of a latent with its RoPE key (MLA).
inline constexpr int32_t kMaxHeadRow = 256;
inline constexpr int32_t kMaxLatentRow = 640;

struct WorkerOptions {
  std::string worker_id;  // unique in the cluster, 1 to 128 bytes
  std::string listen = "127.0.0.1:0";
  std::string advertise;   // host:port for peers and clients; empty: what is listened on
  std::string ops_listen;  // HTTP; empty: none
  TlsOptions tls;
  MemberNames members;  // who may read DebugState, under TLS; empty: any certificate
  std::string cluster_secret;
  std::vector<std::string> coordinators;  // host:port each; empty: a worker on its own

  // One of: a model to run and an engine's model, each of which decides the layouts with block_tokens and format, and
  // the layout of an engine whose layers all attend to everything.
  std::string model_dir;
  int32_t threads = 1;  // of the model to run
  std::optional<ModelShape> engine_model;
  KvFormat format = KvFormat::kF32;
  int32_t block_tokens = 16;
  BlockLayout layout;  // used when neither model is given

  uint32_t device_blocks = 4096;
  uint32_t host_blocks = 0;             // 0: no host tier
  std::optional<KvFormat> host_format;  // of its blocks; none: `format`
  std::string disk_dir;                 // empty: no disk tier
  std::optional<KvFormat> disk_format;
  std::string disk_id;      // empty: worker_id
  uint64_t disk_bytes = 0;  // 0: no cap
  uint64_t disk_floor_bytes = uint64_t{1} << 30;
  uint64_t disk_reserve_bytes = uint64_t{64} << 20;
  std::string policy = "lru";
  double max_pinned_fraction = 0.5;

  SequenceTable::Options sequences;
  absl::Duration sibling_wait = absl::Seconds(10);
  absl::Duration claim_idle = absl::Seconds(5);
  absl::Duration slow_call = absl::Seconds(1);
  // Rates told to the coordinator until measured ones exist.
  double prefill_tokens_per_second = 5000;
  double peer_bytes_per_second = 1e9;
  double host_bytes_per_second = 5e9;
  double disk_bytes_per_second = 1e9;
  const Clock* clock = &Clock::Real();
};

// INVALID_ARGUMENT naming the option.
absl::Status ValidateWorkerOptions(const WorkerOptions& options);

// A layer group, and how its blocks lie in the pool of their own.
struct GroupPool {
  LayerGroup group;
  BlockLayout layout;
};
// Of an engine's cache: the groups that have layers, at least one. REQUIRES: no model_dir.
std::vector<GroupPool> EnginePools(const WorkerOptions& options);

// Blocks of the pool's layout as the tiers below hold them.
struct LowerLayouts {
  BlockLayout host;
  BlockLayout disk;
};
// INVALID_ARGUMENT naming the option: a format in which these blocks can't be stored.
absl::StatusOr<LowerLayouts> LayoutsBelow(const WorkerOptions& options, const BlockLayout& pool);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_WORKER_OPTIONS_H_
