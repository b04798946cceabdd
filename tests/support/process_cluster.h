// A cluster of real processes on loopback: one coordinator and several workers, with handles to kill, stop and restart
// each, and the checks that hold once a cluster has settled.
#ifndef KVMESH_TESTS_SUPPORT_PROCESS_CLUSTER_H_
#define KVMESH_TESTS_SUPPORT_PROCESS_CLUSTER_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/client.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvmesh/v1/worker.grpc.pb.h"
#include "kvstore/service/tls.h"
#include "tests/support/child_process.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/temp_dir.h"

namespace kvmesh {

struct WorkerConfig {
  bool model = true;         // else an engine's cache of 2 layers, 2 K/V heads, head size 16
  std::string model_dir;     // empty: the repository's model
  std::string model_config;  // config.json of an engine's model, in place of both
  int block_tokens = 16;
  int device_blocks = 256;
  int host_blocks = 0;
  bool disk = false;
  std::string disk_dir;     // empty: a folder of its own
  uint64_t disk_bytes = 0;  // 0: no cap
  uint64_t disk_reserve_bytes = 0;
  absl::Duration sibling_wait = absl::Seconds(2);
  bool proxied = false;  // peers and clients of the cluster reach it through a TcpProxy
  std::vector<std::string> extra;
};

struct ClusterConfig {
  std::vector<WorkerConfig> workers;
  std::vector<std::string> coordinator_extra;
  std::string secret;  // of the cluster
  TlsOptions server_tls{.insecure = true};
  TlsOptions client_tls{.insecure = true};
};

// Used by one thread, but for client(), Stub() and address(). The destructor ends all processes and removes all files;
// a test that passed so far fails there when one does not end on SIGTERM with exit code 0, as one that leaked or
// crashed.
class ProcessCluster {
 public:
  explicit ProcessCluster(ClusterConfig config);
  ~ProcessCluster();

  // Starts everything and waits until every worker is ready. On failure the logs are in the message.
  testing::AssertionResult Start();

  size_t size() const { return workers_.size(); }
  Client& client() { return *client_; }
  const std::string& coordinator_address() const { return coordinator_address_; }
  int coordinator_ops_port() const { return coordinator_ops_port_; }
  std::string worker_id(size_t i) const;
  // Where the worker itself listens.
  const std::string& address(size_t i) const { return workers_[i].address; }
  int ops_port(size_t i) const { return workers_[i].ops_port; }
  const std::string& disk_dir(size_t i) const { return workers_[i].config.disk_dir; }
  ChildProcess& worker(size_t i) { return *workers_[i].process; }
  ChildProcess& coordinator() { return *coordinator_; }
  TcpProxy& proxy(size_t i) { return *workers_[i].proxy; }
  const TempDir& folder() const { return folder_; }
  // Directly to the worker, past its proxy.
  std::unique_ptr<v1::Worker::Stub> Stub(size_t i) { return client_->WorkerAt(address(i)); }

  // Starts it (again) on its port. AwaitReady waits for it. Fails when it had ended by itself, in a crash.
  testing::AssertionResult StartWorker(size_t i);
  testing::AssertionResult StartCoordinator();
  // Registered with its present incarnation, snapshot applied.
  testing::AssertionResult AwaitReady(size_t i, absl::Duration patience = absl::Seconds(30));
  testing::AssertionResult AwaitAllReady(absl::Duration patience = absl::Seconds(30));
  // Flags of its next start, in place of WorkerConfig::extra.
  void SetExtra(size_t i, std::vector<std::string> extra) { workers_[i].config.extra = std::move(extra); }
  // SIGTERM, exit code 0, and a new start on the same port.
  testing::AssertionResult RestartGently(size_t i);

  absl::StatusOr<v1::DebugStateResponse> DebugState(size_t i);
  absl::StatusOr<v1::WorkerStatsResponse> Stats(size_t i);

  // Within `patience`, no running worker has anything pinned, private, quarantined, open or in flight.
  testing::AssertionResult BooksAreClean(absl::Duration patience = absl::Seconds(5));
  // Within `patience`, what the coordinator's index holds for each running worker is what that worker holds.
  testing::AssertionResult IndexEqualsWorkers(absl::Duration patience = absl::Seconds(5));

  // The ends of all logs.
  std::string Logs() const;

 private:
  struct Worker {
    WorkerConfig config;
    std::string address;
    std::string advertise;
    int ops_port = 0;
    std::string log;
    std::unique_ptr<TcpProxy> proxy;
    std::unique_ptr<ChildProcess> process;
  };

  void AddTls(std::vector<std::string>& argv) const;
  void EndGently();
  std::string DirtyBooks(size_t i);
  std::string IndexDifference(size_t i, const v1::ListWorkersResponse& listed);

  const ClusterConfig config_;
  TempDir folder_;
  std::string coordinator_address_;
  int coordinator_ops_port_ = 0;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<Worker> workers_;
  std::unique_ptr<Client> client_;
};

// Whether `port` of this machine answers an HTTP GET of `path` with status 200; the body, where wanted.
bool HttpGet(int port, const std::string& path, std::string* body = nullptr);

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_PROCESS_CLUSTER_H_
