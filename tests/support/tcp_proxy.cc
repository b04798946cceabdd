#include "tests/support/tcp_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace kvmesh {
namespace {

constexpr size_t kChunk = 16 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool SendAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

int Dial(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

TcpProxy::TcpProxy(int server_port) : server_port_(server_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener_, 128), 0);
  EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  Disarm();
  std::list<Link> links;
  {
    MutexLock lock(mu_);
    links.splice(links.end(), links_);
  }
  for (Link& link : links) {
    shutdown(link.client, SHUT_RDWR);
    shutdown(link.server, SHUT_RDWR);
    link.thread.join();
    close(link.client);
    close(link.server);
  }
}

std::string TcpProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void TcpProxy::Arm(Fault fault, uint64_t after_bytes) {
  MutexLock lock(mu_);
  fault_ = fault;
  after_ = after_bytes;
  fired_ = false;
  ++arming_;
  changed_.NotifyAll();
}

void TcpProxy::Disarm() {
  MutexLock lock(mu_);
  fault_ = Fault::kNone;
  ++arming_;
  changed_.NotifyAll();
}

bool TcpProxy::AwaitFired(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  MutexLock lock(mu_);
  while (!fired_) {
    if (absl::Now() >= deadline) return false;
    changed_.WaitFor(lock, deadline - absl::Now());
  }
  return true;
}

void TcpProxy::Accept() {
  while (!stopping_) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const int server = Dial(server_port_);
    if (server < 0) {
      close(client);
      continue;
    }
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    MutexLock lock(mu_);
    Link& link = links_.emplace_back();
    link.client = client;
    link.server = server;
    link.thread = std::thread([this, &link] { Relay(link); });
  }
}

bool TcpProxy::Strike(Link& link, char* data, size_t size) {
  MutexLock lock(mu_);
  if (fault_ == Fault::kNone || fired_) return true;
  if (link.armed != arming_) {
    link.armed = arming_;
    link.bytes = 0;
  }
  link.bytes += size;
  if (link.bytes < after_) return true;
  fired_ = true;
  changed_.NotifyAll();
  if (fault_ == Fault::kFlipByte) data[size - 1 - (link.bytes - after_)] ^= 0x10;
  if (fault_ == Fault::kStall) {
    const uint64_t arming = arming_;
    while (arming_ == arming && !stopping_) changed_.Wait(lock);
  }
  return fault_ != Fault::kCut;
}

void TcpProxy::Relay(Link& link) {
  std::vector<char> buffer(kChunk);
  pollfd ends[2] = {{.fd = link.client, .events = POLLIN}, {.fd = link.server, .events = POLLIN}};
  bool open = true;
  while (open && !stopping_ && poll(ends, 2, -1) > 0) {
    for (int from = 0; from < 2 && open; ++from) {
      if (ends[from].revents == 0) continue;
      const ssize_t got = recv(ends[from].fd, buffer.data(), buffer.size(), 0);
      open = got > 0 && (from == 0 || Strike(link, buffer.data(), static_cast<size_t>(got))) &&
             SendAll(ends[1 - from].fd, buffer.data(), static_cast<size_t>(got));
    }
  }
  shutdown(link.client, SHUT_RDWR);
  shutdown(link.server, SHUT_RDWR);
}

}  // namespace kvmesh
