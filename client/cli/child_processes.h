// Programs started by `kvmesh up`: found beside this one, ended with it.
#ifndef KVMESH_CLIENT_CLI_CHILD_PROCESSES_H_
#define KVMESH_CLIENT_CLI_CHILD_PROCESSES_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Not thread safe.
class ChildProcesses {
 public:
  // Longer than the programs' own --drain-ms.
  static constexpr absl::Duration kDefaultGrace = absl::Seconds(15);

  ChildProcesses() = default;
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;
  // Ends what still runs.
  ~ChildProcesses() { Stop(kDefaultGrace).IgnoreError(); }

  // Starts `program` from this executable's folder. The child gets SIGTERM if this process dies. NOT_FOUND, INTERNAL.
  absl::Status Start(const std::string& program, const std::vector<std::string>& arguments);

  // True when one ended by itself; `what` says which and how.
  bool AnyEnded(std::string& what);

  // SIGTERM to all in reverse order, SIGKILL to those that have not ended after `grace`. INTERNAL names the first that
  // did not exit with 0.
  absl::Status Stop(absl::Duration grace = kDefaultGrace);

 private:
  struct Child {
    std::string program;
    pid_t pid;
  };
  std::vector<Child> children_;
};

// A TCP port on 127.0.0.1 that nobody listens on now. UNAVAILABLE: none.
absl::StatusOr<int> FreePort();

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_CHILD_PROCESSES_H_
