// A server that takes connections and never says a word.
#ifndef KVMESH_TESTS_SYSTEM_SILENT_LISTENER_H_
#define KVMESH_TESTS_SYSTEM_SILENT_LISTENER_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace kvmesh {

class SilentListener {
 public:
  SilentListener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~SilentListener() { close(fd_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;

  const std::string& address() const { return address_; }
  // True once somebody has connected.
  bool AwaitCaller(absl::Duration patience) {
    pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string address_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SYSTEM_SILENT_LISTENER_H_
