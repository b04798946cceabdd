#include "tests/support/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/await.h"

namespace kvmesh {
namespace {

constexpr int kFirstPort = 12000;
constexpr int kPorts = 20000;

int OpenToAppend(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bool CanBind(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return bound;
}

}  // namespace

int FreePort() {
  // Programs that run at once start at different places.
  static std::atomic<int> next{static_cast<int>(getpid()) * 97};
  while (true) {
    const int port = kFirstPort + (next++ % kPorts + kPorts) % kPorts;
    if (CanBind(port)) return port;
  }
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& argv,
                                                                  const std::string& log_path,
                                                                  const std::string& output_path) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int log = OpenToAppend(log_path);
  if (log < 0) return absl::UnavailableError(absl::StrCat("cannot write ", log_path));
  const int output = output_path.empty() ? dup(log) : OpenToAppend(output_path);
  if (output < 0) {
    close(log);
    return absl::UnavailableError(absl::StrCat("cannot write ", output_path));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only calls that are safe after a fork of a program with threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(output, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(log);
  close(output);
  if (pid < 0) return absl::UnavailableError("fork failed");
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, log_path));
}

ChildProcess::~ChildProcess() { Kill(); }

void ChildProcess::Signal(int signal) {
  if (Running()) kill(pid_, signal);
}

void ChildProcess::Kill() {
  if (!Running()) return;
  kill(pid_, SIGKILL);
  AwaitExit(absl::Seconds(10));
}

bool ChildProcess::Running() {
  if (exit_) return false;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got == 0) return true;
  exit_ = got < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return false;
}

std::optional<int> ChildProcess::AwaitExit(absl::Duration patience) {
  Await(patience, [this] { return !Running(); });
  return exit_;
}

uint64_t ChildProcess::ResidentBytes() const {
  std::ifstream statm(absl::StrCat("/proc/", pid_, "/statm"));
  uint64_t total = 0;
  uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string ChildProcess::LogTail(size_t bytes) const {
  const std::string text = ReadFile(log_path_);
  return text.size() > bytes ? text.substr(text.size() - bytes) : text;
}

EndedProgram RunProgram(const std::string& folder, const std::vector<std::string>& argv, absl::Duration patience) {
  static std::atomic<int> number{0};
  const std::string base = absl::StrCat(folder, "/program-", number++);
  const std::string paths[] = {absl::StrCat(base, ".out"), absl::StrCat(base, ".err")};
  EndedProgram ended;
  const auto process = ChildProcess::Start(argv, paths[1], paths[0]);
  EXPECT_TRUE(process.ok()) << process.status();
  if (process.ok()) {
    const std::optional<int> code = (*process)->AwaitExit(patience);
    (*process)->Kill();
    ended = {code.value_or(-SIGKILL), ReadFile(paths[0]), ReadFile(paths[1])};
    EXPECT_TRUE(code.has_value()) << argv[0] << " still ran\n" << ended.error;
  }
  for (const std::string& path : paths) unlink(path.c_str());
  return ended;
}

}  // namespace kvmesh
