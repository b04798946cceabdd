// A TCP relay on loopback that damages what a server sends: one byte flipped, a stall, or a cut, at a chosen place.
#ifndef KVMESH_TESTS_SUPPORT_TCP_PROXY_H_
#define KVMESH_TESTS_SUPPORT_TCP_PROXY_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

// Thread safe. Listens from construction to destruction; the server behind it may come and go.
class TcpProxy {
 public:
  enum class Fault {
    kNone,
    kFlipByte,  // one bit of one byte
    kStall,     // the connection carries nothing more towards the client until Disarm
    kCut,       // the connection is closed
  };

  // Relays to 127.0.0.1:server_port.
  explicit TcpProxy(int server_port);
  ~TcpProxy();

  int port() const { return port_; }
  std::string address() const;

  // The fault strikes once: the first connection that brings `after_bytes` from the server, counted from now.
  void Arm(Fault fault, uint64_t after_bytes);
  // Forgets the fault and lets a stalled connection go on.
  void Disarm();
  // Waits until the armed fault struck. False: not within `patience`.
  bool AwaitFired(absl::Duration patience);

 private:
  struct Link {
    int client = -1;
    int server = -1;
    std::thread thread;
    uint64_t armed = 0;  // the arming that `bytes` counts from
    uint64_t bytes = 0;
  };

  void Accept();
  void Relay(Link& link);
  // What to do with the bytes that the server sent; false: close.
  bool Strike(Link& link, char* data, size_t size);

  const int server_port_;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  std::atomic<bool> stopping_{false};

  Mutex mu_;
  CondVar changed_;
  std::list<Link> links_ ABSL_GUARDED_BY(mu_);
  Fault fault_ ABSL_GUARDED_BY(mu_) = Fault::kNone;
  uint64_t after_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t arming_ ABSL_GUARDED_BY(mu_) = 0;
  bool fired_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_TCP_PROXY_H_
