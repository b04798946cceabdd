// A program started by a test: its output goes to a file, and it never outlives the test.
#ifndef KVMESH_TESTS_SUPPORT_CHILD_PROCESS_H_
#define KVMESH_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// A port of 127.0.0.1 that was free a moment ago, below the range from which the kernel gives out ports itself.
int FreePort();

// Not thread safe. The destructor kills it.
class ChildProcess {
 public:
  // argv[0] is the program's path. Standard error is appended to `log_path`, and so is standard output, unless it has a
  // file of its own. The child is killed when the calling thread ends, so start it on a thread that lives as long as
  // the test. UNAVAILABLE: fork failed, or a file can't be written. A program that can't be run exits with 127.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& argv,
                                                             const std::string& log_path,
                                                             const std::string& output_path = "");
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Sends a signal; nothing once it has ended.
  void Signal(int signal);
  // SIGKILL, and waits for the end.
  void Kill();
  bool Running();
  // The exit code, or minus the signal that ended it; nullopt when it still runs after `patience`.
  std::optional<int> AwaitExit(absl::Duration patience);
  // Resident memory now; 0 once it has ended.
  uint64_t ResidentBytes() const;
  // The end of what it wrote.
  std::string LogTail(size_t bytes = 4000) const;

 private:
  ChildProcess(pid_t pid, std::string log_path) : pid_(pid), log_path_(std::move(log_path)) {}

  const pid_t pid_;
  const std::string log_path_;
  std::optional<int> exit_;
};

// What a program left when it ended.
struct EndedProgram {
  int code = 0;  // minus the signal that ended it
  std::string output;
  std::string error;
};

// Runs a program to its end. One that still runs after `patience` is killed, and fails the test. Its files in `folder`
// are gone when this returns.
EndedProgram RunProgram(const std::string& folder, const std::vector<std::string>& argv, absl::Duration patience);

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_CHILD_PROCESS_H_
