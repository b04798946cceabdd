#include "kvstore/service/ops_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kvstore/service/host_port.h"
#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kMetricsText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kRequestTimeoutMs[] = "5000";
constexpr int kMaxThreads = 64;
constexpr std::chrono::milliseconds kKnockInterval{5};

struct Reply {
  int code = 200;
  const char* phrase = "OK";
  std::string body = "ok\n";
  const char* type = kText;
};

int LogMessage(const mg_connection*, const char* message) {
  Log(LogLevel::kWarning, "ops", "http server", {{"detail", message}});
  return 1;
}

// Connects to the listener again and again until destroyed: civetweb looks at its stop flag only every two seconds, or
// when a connection comes.
class Knocker {
 public:
  Knocker(const std::string& host, int port) : thread_([this, host, port] { Run(host, port); }) {}
  ~Knocker() {
    done_.store(true);
    thread_.join();
  }

 private:
  void Run(const std::string& host, int port) {
    addrinfo hints = {};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* address = nullptr;
    // A connection to a wildcard address reaches this machine.
    if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &address) != 0) return;
    while (!done_.load()) {
      const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (fd >= 0) {
        static_cast<void>(connect(fd, address->ai_addr, address->ai_addrlen));
        std::this_thread::sleep_for(kKnockInterval);
        close(fd);
      }
    }
    freeaddrinfo(address);
  }

  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace

struct OpsHandler {
  static Reply Answer(OpsServer& server, absl::string_view method, absl::string_view path) {
    if (path != "/healthz" && path != "/readyz" && path != "/metrics") return {404, "Not Found", "not found\n"};
    if (method != "GET" && method != "HEAD") return {405, "Method Not Allowed", "method not allowed\n"};
    if (path == "/metrics") return {200, "OK", server.metrics_.Text(), kMetricsText};
    if (path == "/readyz" && server.options_.not_ready) {
      const std::string reason = server.options_.not_ready();
      if (!reason.empty()) return {503, "Service Unavailable", reason + "\n"};
    }
    return {};
  }

  static int BeginRequest(mg_connection* connection) {
    const mg_request_info* request = mg_get_request_info(connection);
    auto& server = *static_cast<OpsServer*>(request->user_data);
    const absl::string_view path = request->local_uri == nullptr ? "" : request->local_uri;
    const Reply reply = Answer(server, request->request_method, path);
    std::string bytes =
        absl::StrCat("HTTP/1.1 ", reply.code, " ", reply.phrase, "\r\nContent-Type: ", reply.type,
                     "\r\nContent-Length: ", reply.body.size(), "\r\nCache-Control: no-store\r\nConnection: close\r\n");
    if (reply.code == 405) bytes += "Allow: GET, HEAD\r\n";
    bytes += "\r\n";
    if (absl::string_view(request->request_method) != "HEAD") bytes += reply.body;
    mg_write(connection, bytes.data(), bytes.size());
    return reply.code;
  }
};

OpsServer::OpsServer(OpsServerOptions options, Metrics& metrics) : options_(std::move(options)), metrics_(metrics) {}

absl::StatusOr<std::unique_ptr<OpsServer>> OpsServer::Start(OpsServerOptions options, Metrics& metrics) {
  const absl::StatusOr<HostPort> host_port = ParseHostPort(options.address);
  if (!host_port.ok()) return host_port.status();
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("ops threads ", options.threads, ", must be 1 to ", kMaxThreads));
  }
  std::unique_ptr<OpsServer> server(new OpsServer(std::move(options), metrics));
  const std::string& address = server->options_.address;
  const std::string threads = absl::StrCat(server->options_.threads);
  const char* settings[] = {"listening_ports",
                            address.c_str(),
                            "num_threads",
                            threads.c_str(),
                            "request_timeout_ms",
                            kRequestTimeoutMs,
                            "enable_keep_alive",
                            "no",
                            "enable_directory_listing",
                            "no",
                            nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = OpsHandler::BeginRequest;
  callbacks.log_message = LogMessage;

  mg_init_library(MG_FEATURES_DEFAULT);
  unsigned code = 0;
  char text[256] = "";
  mg_error_data error = {&code, text, sizeof(text)};
  mg_init_data init = {&callbacks, server.get(), settings};
  server->context_ = mg_start2(&init, &error);
  if (server->context_ == nullptr) {
    mg_exit_library();
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", text));
  }
  mg_server_port port = {};
  if (mg_get_server_ports(server->context_, 1, &port) == 1) server->port_ = port.port;
  server->host_ = host_port->host;
  return server;
}

OpsServer::~OpsServer() {
  if (context_ == nullptr) return;
  {
    Knocker knocker(host_, port_);
    mg_stop(context_);
  }
  mg_exit_library();
}

}  // namespace kvmesh
