// How far a long subcommand is, for a terminal.
#ifndef KVMESH_CLIENT_CLI_PROGRESS_LINE_H_
#define KVMESH_CLIENT_CLI_PROGRESS_LINE_H_

#include <cstddef>
#include <cstdio>

#include "absl/time/clock.h"

namespace kvmesh {

// A line on standard error that is written over, ten times a second at most, and ends when all is done.
class ProgressLine {
 public:
  // `unit`: of what is counted; it outlives this.
  explicit ProgressLine(const char* unit) : unit_(unit) {}

  void operator()(size_t done, size_t all) {
    const absl::Time now = absl::Now();
    if (now - last_ < absl::Milliseconds(100) && done != all) return;
    last_ = now;
    std::fprintf(stderr, "\r%zu of %zu %s%s", done, all, unit_, done == all ? "\n" : "");
  }

 private:
  const char* unit_;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_PROGRESS_LINE_H_
