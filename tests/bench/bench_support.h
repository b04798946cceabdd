// What all benchmarks share: flags, measuring beside a probe, percentiles, load generators, and the table they print.
//
// Every figure stands beside a probe that was measured in the same run, in turns with it; on a shared machine only the
// ratio says something.
#ifndef KVMESH_TESTS_BENCH_BENCH_SUPPORT_H_
#define KVMESH_TESTS_BENCH_BENCH_SUPPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct BenchOptions {
  bool quick = false;  // a smoke run: small, few rounds
  bool json = false;
  bool check = false;  // the exit code reflects the bars

  int rounds(int full) const { return quick ? 2 : full; }
  absl::Duration window(absl::Duration full) const { return quick ? full / 4 : full; }
};

// Parses --quick, --json and --check; leaves the program for --help or a wrong flag. Logs below an error are dropped.
BenchOptions ParseBenchOptions(int argc, const char* const* argv, const std::string& description);

// Ends the program with the status on standard error when it is not OK.
void Must(const absl::Status& status);
template <class T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

// Monotonic seconds.
double SecondsNow();
// Nearest rank, `q` from 0 to 1. REQUIRES: not empty.
double Percentile(std::vector<double> values, double q);

// Figures of one alternation, always the same ones in the same order.
using Sample = std::vector<double>;
struct Comparison {
  Sample value;  // medians over the rounds
  Sample probe;
  Sample ratio;  // median of each round's value / probe
};
// Runs `value` and `probe` once uncounted, then in turns, each first in every other round.
Comparison Alternate(int rounds, const std::function<Sample()>& value, const std::function<Sample()>& probe);

// Seconds that one call of `work` takes, from as many calls as fill `window`.
double SecondsPerCall(absl::Duration window, const std::function<void()>& work);

// Calls per second that `callers` threads reach when each calls again at once. `call` gets the caller's number.
double ClosedLoop(int callers, absl::Duration window, const std::function<void(int caller)>& call);
// Latencies, in seconds, of calls that are due at even distances whatever the earlier ones do; each counts from when it
// was due, and all are waited for. At most `callers` run at a time.
std::vector<double> OpenLoop(double calls_per_second, int callers, absl::Duration window,
                             const std::function<void(int caller)>& call);

// A line of a report.
struct Figure {
  std::string name;
  std::string unit;
  double value = 0;
  std::string probe_name;
  double probe = 0;
  double ratio = 0;                 // value / probe
  std::optional<double> min_ratio;  // the bar
};

// Collects figures and prints them once.
class Report {
 public:
  Report(std::string title, const BenchOptions& options) : title_(std::move(title)), options_(options) {}

  void Add(Figure figure) { figures_.push_back(std::move(figure)); }
  // Figure `index` of a comparison, scaled into `unit`.
  void Add(std::string name, std::string unit, double scale, std::string probe_name, const Comparison& comparison,
           size_t index = 0, std::optional<double> min_ratio = std::nullopt);
  // Printed below the table.
  void Note(std::string text) { notes_.push_back(std::move(text)); }

  // Prints, and returns the exit code: 0, or 1 when there is no figure, one that is not a positive number, or, with
  // --check, one below its bar.
  int Finish() const;

 private:
  void PrintTable() const;
  void PrintJson() const;

  const std::string title_;
  const BenchOptions options_;
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_BENCH_BENCH_SUPPORT_H_
