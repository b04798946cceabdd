#include "client/cli/child_processes.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace kvmesh {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

// Runs in the child between fork and exec.
[[noreturn]] void Exec(const std::string& path, const std::vector<char*>& argv) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(path.c_str(), argv.data());
  const char message[] = "kvmesh: exec failed\n";
  if (write(STDERR_FILENO, message, sizeof(message) - 1) < 0) _exit(126);
  _exit(127);
}

// `status` as waitpid gave it.
std::string HowItEnded(const std::string& program, int status) {
  return absl::StrCat(program, WIFEXITED(status) ? " exited with " : " ended by signal ",
                      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

}  // namespace

absl::Status ChildProcesses::Start(const std::string& program, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (self.parent_path() / program).string();
  if (error || access(path.c_str(), X_OK) != 0) return absl::NotFoundError(absl::StrCat(path, ": no such program"));
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) Exec(path, argv);
  children_.push_back({program, pid});
  return absl::OkStatus();
}

bool ChildProcesses::AnyEnded(std::string& what) {
  for (auto it = children_.begin(); it != children_.end(); ++it) {
    int status = 0;
    if (waitpid(it->pid, &status, WNOHANG) != it->pid) continue;
    what = HowItEnded(it->program, status);
    children_.erase(it);
    return true;
  }
  return false;
}

absl::Status ChildProcesses::Stop(absl::Duration grace) {
  absl::Status ended;
  for (auto it = children_.rbegin(); it != children_.rend(); ++it) kill(it->pid, SIGTERM);
  const absl::Time deadline = absl::Now() + grace;
  while (!children_.empty()) {
    const Child child = children_.back();
    int status = 0;
    if (waitpid(child.pid, &status, WNOHANG) == 0) {
      if (absl::Now() < deadline) {
        absl::SleepFor(kPollInterval);
        continue;
      }
      kill(child.pid, SIGKILL);
      waitpid(child.pid, &status, 0);
    }
    if (status != 0) ended.Update(absl::InternalError(HowItEnded(child.program, status)));
    children_.pop_back();
  }
  return ended;
}

absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) close(fd);
  if (!bound) return absl::UnavailableError("no free port on 127.0.0.1");
  return ntohs(address.sin_port);
}

}  // namespace kvmesh
