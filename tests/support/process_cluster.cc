#include "tests/support/process_cluster.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kvstore/service/grpc_status.h"
#include "tests/support/await.h"

namespace kvmesh {
namespace {

constexpr char kBin[] = KVMESH_BIN_DIR;
constexpr char kModel[] = KVMESH_MODEL_DIR;
constexpr absl::Duration kCallTime = absl::Seconds(5);

// Calls that still run hold up an end by the programs' --drain-ms at most.
constexpr absl::Duration kEndTime = absl::Seconds(30);

std::string Host(int port) { return absl::StrCat("127.0.0.1:", port); }

// Fails for a process that ended otherwise than on request: with another exit code than 0, or by a signal that no test
// sends to end one.
testing::AssertionResult EndedWell(const std::string& name, ChildProcess* process) {
  if (process == nullptr || process->Running()) return testing::AssertionSuccess();
  const int code = process->AwaitExit(absl::ZeroDuration()).value_or(0);
  if (code == 0 || code == -SIGKILL) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << " ended with " << code << "\n" << process->LogTail();
}

}  // namespace

ProcessCluster::ProcessCluster(ClusterConfig config) : config_(std::move(config)) {
  coordinator_address_ = Host(FreePort());
  coordinator_ops_port_ = FreePort();
  for (size_t i = 0; i < config_.workers.size(); ++i) {
    Worker& worker = workers_.emplace_back();
    worker.config = config_.workers[i];
    const int port = FreePort();
    worker.address = Host(port);
    worker.ops_port = FreePort();
    worker.log = folder_ / absl::StrCat("worker-", i, ".log");
    if (worker.config.disk && worker.config.disk_dir.empty()) {
      worker.config.disk_dir = folder_ / absl::StrCat("disk-", i);
    }
    if (worker.config.proxied) worker.proxy = std::make_unique<TcpProxy>(port);
    worker.advertise = worker.proxy == nullptr ? worker.address : worker.proxy->address();
  }
  if (!config_.secret.empty()) std::ofstream(folder_ / "secret", std::ios::binary) << config_.secret;
  ClientOptions options;
  options.coordinators = {coordinator_address_};
  options.tls = config_.client_tls;
  options.timeout = kCallTime;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  EXPECT_TRUE(client.ok()) << client.status();
  if (client.ok()) client_ = *std::move(client);
}

ProcessCluster::~ProcessCluster() {
  if (!testing::Test::HasFailure()) EndGently();
  if (testing::Test::HasFailure()) std::cerr << Logs();
  for (Worker& worker : workers_) worker.process.reset();
  coordinator_.reset();
}

void ProcessCluster::EndGently() {
  for (Worker& worker : workers_) {
    if (worker.process != nullptr) worker.process->Signal(SIGTERM);
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].process == nullptr) continue;
    EXPECT_TRUE(workers_[i].process->AwaitExit(kEndTime)) << worker_id(i) << " runs on after SIGTERM";
    EXPECT_TRUE(EndedWell(worker_id(i), workers_[i].process.get()));
  }
  if (coordinator_ == nullptr) return;
  coordinator_->Signal(SIGTERM);
  EXPECT_TRUE(coordinator_->AwaitExit(kEndTime)) << "the coordinator runs on after SIGTERM";
  EXPECT_TRUE(EndedWell("the coordinator", coordinator_.get()));
}

std::string ProcessCluster::worker_id(size_t i) const { return absl::StrCat("worker-", i); }

void ProcessCluster::AddTls(std::vector<std::string>& argv) const {
  const TlsOptions& tls = config_.server_tls;
  if (tls.insecure) {
    argv.push_back("--insecure");
  } else {
    argv.insert(argv.end(), {"--tls-cert", tls.cert_file, "--tls-key", tls.key_file, "--tls-ca", tls.ca_file});
  }
  if (!config_.secret.empty()) argv.insert(argv.end(), {"--cluster-secret-file", folder_ / "secret"});
}

testing::AssertionResult ProcessCluster::StartCoordinator() {
  if (auto ended = EndedWell("the coordinator", coordinator_.get()); !ended) return ended;
  std::vector<std::string> argv = {absl::StrCat(kBin, "/kvmesh-coordinator"),
                                   "--listen",
                                   coordinator_address_,
                                   "--ops-listen",
                                   Host(coordinator_ops_port_),
                                   "--heartbeat-ms",
                                   "200",
                                   "--missed-heartbeats",
                                   "10"};
  AddTls(argv);
  argv.insert(argv.end(), config_.coordinator_extra.begin(), config_.coordinator_extra.end());
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(argv, folder_ / "coordinator.log");
  if (!process.ok()) return testing::AssertionFailure() << process.status();
  coordinator_ = *std::move(process);
  const bool up = Await(absl::Seconds(20), [&] { return !coordinator_->Running() || client_->Stats().ok(); });
  if (up && coordinator_->Running()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the coordinator is not up\n" << coordinator_->LogTail();
}

testing::AssertionResult ProcessCluster::StartWorker(size_t i) {
  Worker& worker = workers_[i];
  if (auto ended = EndedWell(worker_id(i), worker.process.get()); !ended) return ended;
  const WorkerConfig& config = worker.config;
  std::vector<std::string> argv = {absl::StrCat(kBin, "/kvmesh-worker"),
                                   "--id",
                                   worker_id(i),
                                   "--listen",
                                   worker.address,
                                   "--advertise",
                                   worker.advertise,
                                   "--coordinator",
                                   coordinator_address_,
                                   "--ops-listen",
                                   Host(worker.ops_port)};
  AddTls(argv);
  const auto add = [&argv](const char* flag, const auto& value) {
    argv.push_back(flag);
    argv.push_back(absl::StrCat(value));
  };
  if (!config.model_config.empty()) {
    add("--model-config", config.model_config);
  } else if (config.model) {
    add("--model", config.model_dir.empty() ? std::string(kModel) : config.model_dir);
  } else {
    argv.insert(argv.end(), {"--layers", "2", "--kv-heads", "2", "--head-dim", "16"});
  }
  add("--block-tokens", config.block_tokens);
  add("--device-blocks", config.device_blocks);
  add("--host-blocks", config.host_blocks);
  add("--sibling-wait-ms", absl::ToInt64Milliseconds(config.sibling_wait));
  add("--max-pinned-fraction", 1);
  if (config.disk) {
    add("--disk-dir", config.disk_dir);
    add("--disk-bytes", config.disk_bytes);
    add("--disk-floor-bytes", 0);
    add("--disk-reserve-bytes", config.disk_reserve_bytes);
  }
  argv.insert(argv.end(), config.extra.begin(), config.extra.end());
  worker.process.reset();
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(argv, worker.log);
  if (!process.ok()) return testing::AssertionFailure() << process.status();
  worker.process = *std::move(process);
  return testing::AssertionSuccess();
}

testing::AssertionResult ProcessCluster::Start() {
  if (client_ == nullptr) return testing::AssertionFailure() << "no client";
  if (auto started = StartCoordinator(); !started) return started;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (auto started = StartWorker(i); !started) return started;
  }
  return AwaitAllReady();
}

testing::AssertionResult ProcessCluster::AwaitReady(size_t i, absl::Duration patience) {
  std::string last;
  const bool ready = Await(patience, [&] {
    if (!worker(i).Running()) return true;
    const auto stats = Stats(i);
    const auto listed = client_->ListWorkers();
    if (!stats.ok() || !listed.ok()) {
      last = absl::StrCat(stats.status().ToString(), "; ", listed.status().ToString());
      return false;
    }
    for (const v1::WorkerStatus& status : listed->workers()) {
      if (status.info().worker_id() != worker_id(i)) continue;
      last = status.ShortDebugString();
      if (status.info().incarnation() == stats->incarnation() && status.state() == v1::WorkerStatus::STATE_READY) {
        return true;
      }
    }
    return false;
  });
  if (ready && worker(i).Running()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << worker_id(i) << " is not ready: " << last << "\n" << worker(i).LogTail();
}

testing::AssertionResult ProcessCluster::AwaitAllReady(absl::Duration patience) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (auto ready = AwaitReady(i, patience); !ready) return ready;
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult ProcessCluster::RestartGently(size_t i) {
  worker(i).Signal(SIGTERM);
  const std::optional<int> code = worker(i).AwaitExit(kEndTime);
  if (code != 0) {
    return testing::AssertionFailure() << worker_id(i) << " ended with " << (code ? absl::StrCat(*code) : "nothing")
                                       << "\n"
                                       << worker(i).LogTail();
  }
  if (auto started = StartWorker(i); !started) return started;
  return AwaitReady(i);
}

absl::StatusOr<v1::DebugStateResponse> ProcessCluster::DebugState(size_t i) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTime));
  v1::DebugStateResponse response;
  const grpc::Status status = Stub(i)->DebugState(&context, {}, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<v1::WorkerStatsResponse> ProcessCluster::Stats(size_t i) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTime));
  v1::WorkerStatsResponse response;
  const grpc::Status status = Stub(i)->Stats(&context, {}, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

std::string ProcessCluster::DirtyBooks(size_t i) {
  const auto books = DebugState(i);
  if (!books.ok()) return absl::StrCat(worker_id(i), ": ", books.status().ToString());
  const std::pair<const char*, uint64_t> fields[] = {{"pinned_blocks", books->pinned_blocks()},
                                                     {"private_blocks", books->private_blocks()},
                                                     {"quarantined_blocks", books->quarantined_blocks()},
                                                     {"open_sequences", books->open_sequences()},
                                                     {"sessions", books->sessions()},
                                                     {"transfers_in_flight", books->transfers_in_flight()},
                                                     {"serving_fetches", books->serving_fetches()},
                                                     {"computing_blocks", books->computing_blocks()},
                                                     {"pins", books->pins()},
                                                     {"read_pins", books->read_pins()}};
  std::vector<std::string> dirty;
  for (const auto& [name, value] : fields) {
    if (value != 0) dirty.push_back(absl::StrCat(name, "=", value));
  }
  return dirty.empty() ? "" : absl::StrCat(worker_id(i), ": ", absl::StrJoin(dirty, " "));
}

testing::AssertionResult ProcessCluster::BooksAreClean(absl::Duration patience) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!worker(i).Running()) continue;
    std::string dirty;
    if (!Await(patience, [&] { return (dirty = DirtyBooks(i)).empty(); })) return testing::AssertionFailure() << dirty;
  }
  return testing::AssertionSuccess();
}

std::string ProcessCluster::IndexDifference(size_t i, const v1::ListWorkersResponse& listed) {
  const auto books = DebugState(i);
  if (!books.ok()) return absl::StrCat(worker_id(i), ": ", books.status().ToString());
  for (const v1::WorkerStatus& status : listed.workers()) {
    if (status.info().worker_id() != worker_id(i)) continue;
    if (status.info().incarnation() != books->incarnation()) return absl::StrCat(worker_id(i), ": another incarnation");
    for (const v1::SetBooks& set : books->sets()) {
      bool found = false;
      for (const v1::DigestEvent& digest : status.digests()) {
        if (digest.set() != set.set()) continue;
        found = true;
        if (digest.count() != set.count() || digest.sum() != set.digest()) {
          return absl::StrCat(worker_id(i), " ", v1::BlockSet_Name(set.set()), ": index ", digest.count(), " ",
                              absl::BytesToHexString(digest.sum()), ", worker ", set.count(), " ",
                              absl::BytesToHexString(set.digest()));
        }
      }
      if (!found) return absl::StrCat(worker_id(i), " ", v1::BlockSet_Name(set.set()), ": no digest");
    }
    return "";
  }
  return absl::StrCat(worker_id(i), ": not listed");
}

testing::AssertionResult ProcessCluster::IndexEqualsWorkers(absl::Duration patience) {
  std::string difference;
  const bool equal = Await(patience, [&] {
    const auto listed = client_->ListWorkers();
    difference = listed.ok() ? "" : listed.status().ToString();
    for (size_t i = 0; i < workers_.size() && difference.empty(); ++i) {
      if (worker(i).Running()) difference = IndexDifference(i, *listed);
    }
    return difference.empty();
  });
  return equal ? testing::AssertionSuccess() : testing::AssertionFailure() << difference;
}

std::string ProcessCluster::Logs() const {
  std::string all;
  if (coordinator_ != nullptr) absl::StrAppend(&all, "--- coordinator\n", coordinator_->LogTail());
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].process == nullptr) continue;
    absl::StrAppend(&all, "--- ", worker_id(i), "\n", workers_[i].process->LogTail());
  }
  return all;
}

bool HttpGet(int port, const std::string& path, std::string* body) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t got; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
        answer.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  const size_t head = answer.find("\r\n\r\n");
  if (body != nullptr) *body = head == std::string::npos ? "" : answer.substr(head + 4);
  return answer.rfind("HTTP/1.", 0) == 0 && answer.substr(8, 5) == " 200 ";
}

}  // namespace kvmesh
