#include "tests/bench/bench_support.h"

#include <grpc/grpc.h>
#include <sys/prctl.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvstore/service/flags.h"
#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

using SteadyClock = std::chrono::steady_clock;

bool IsMet(const Figure& figure) { return !figure.min_ratio || figure.ratio >= *figure.min_ratio; }

bool IsFigure(double value) { return std::isfinite(value) && value > 0; }

Sample Medians(const std::vector<Sample>& rounds) {
  Sample out;
  for (size_t i = 0; i < rounds.front().size(); ++i) {
    std::vector<double> values;
    for (const Sample& round : rounds) values.push_back(round[i]);
    out.push_back(Percentile(std::move(values), 0.5));
  }
  return out;
}

// Runs `work(thread number)` on `threads` threads that begin together.
void RunTogether(int threads, const std::function<void(int)>& work) {
  std::latch ready(threads);
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      ready.arrive_and_wait();
      work(i);
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace

BenchOptions ParseBenchOptions(int argc, const char* const* argv, const std::string& description) {
  BenchOptions options;
  CLI::App app(description);
  app.add_flag("--quick", options.quick, "a smoke run of at most 3 s; its figures say little");
  app.add_flag("--json", options.json, "print one JSON object instead of a table");
  app.add_flag("--check", options.check, "exit 1 when a ratio is below its bar");
  ParseFlags(app, argc, argv);
  SetMinLogLevel(LogLevel::kError);
  // Keeps gRPC up: when its last user ends it stops its threads, and may wait 10 s for one of them.
  grpc_init();
  return options;
}

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "benchmark failed: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

double SecondsNow() { return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count(); }

double Percentile(std::vector<double> values, double q) {
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  const size_t index = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(index), values.end());
  return values[index];
}

Comparison Alternate(int rounds, const std::function<Sample()>& value, const std::function<Sample()>& probe) {
  value();
  probe();
  std::vector<Sample> values, probes, ratios;
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) values.push_back(value());
    probes.push_back(probe());
    if (round % 2 != 0) values.push_back(value());
    Sample ratio;
    for (size_t i = 0; i < values.back().size(); ++i) ratio.push_back(values.back()[i] / probes.back()[i]);
    ratios.push_back(std::move(ratio));
  }
  return {.value = Medians(values), .probe = Medians(probes), .ratio = Medians(ratios)};
}

double SecondsPerCall(absl::Duration window, const std::function<void()>& work) {
  const double start = SecondsNow();
  const double end = start + absl::ToDoubleSeconds(window);
  uint64_t calls = 0;
  double now = start;
  do {
    work();
    ++calls;
    now = SecondsNow();
  } while (now < end);
  return (now - start) / static_cast<double>(calls);
}

double ClosedLoop(int callers, absl::Duration window, const std::function<void(int caller)>& call) {
  std::atomic<uint64_t> calls{0};
  std::atomic<double> started{0};
  RunTogether(callers, [&](int caller) {
    double unset = 0;
    const double now = SecondsNow();
    started.compare_exchange_strong(unset, now);
    const double end = started.load() + absl::ToDoubleSeconds(window);
    uint64_t done = 0;
    while (SecondsNow() < end) {
      call(caller);
      ++done;
    }
    calls += done;
  });
  return static_cast<double>(calls.load()) / (SecondsNow() - started.load());
}

std::vector<double> OpenLoop(double calls_per_second, int callers, absl::Duration window,
                             const std::function<void(int caller)>& call) {
  const auto total = static_cast<size_t>(std::max(10.0, calls_per_second * absl::ToDoubleSeconds(window)));
  const std::chrono::duration<double> distance(1 / calls_per_second);
  std::vector<double> latencies(total);
  std::atomic<size_t> next{0};
  const SteadyClock::time_point start = SteadyClock::now() + std::chrono::milliseconds(5);
  RunTogether(callers, [&](int caller) {
    prctl(PR_SET_TIMERSLACK, 1UL);  // wake on time, not up to 50 us later
    for (size_t i = next++; i < total; i = next++) {
      const auto due = start + std::chrono::duration_cast<SteadyClock::duration>(distance * static_cast<double>(i));
      std::this_thread::sleep_until(due);
      call(caller);
      latencies[i] = std::chrono::duration<double>(SteadyClock::now() - due).count();
    }
  });
  return latencies;
}

void Report::Add(std::string name, std::string unit, double scale, std::string probe_name, const Comparison& comparison,
                 size_t index, std::optional<double> min_ratio) {
  Add({.name = std::move(name),
       .unit = std::move(unit),
       .value = comparison.value[index] * scale,
       .probe_name = std::move(probe_name),
       .probe = comparison.probe[index] * scale,
       .ratio = comparison.ratio[index],
       .min_ratio = min_ratio});
}

int Report::Finish() const {
  if (options_.json) {
    PrintJson();
  } else {
    PrintTable();
  }
  const bool figures = !figures_.empty() && std::all_of(figures_.begin(), figures_.end(), [](const Figure& figure) {
    return IsFigure(figure.value) && IsFigure(figure.probe) && IsFigure(figure.ratio);
  });
  const bool met = std::all_of(figures_.begin(), figures_.end(), IsMet);
  if (!figures) std::fprintf(stderr, "%s: a figure is missing\n", title_.c_str());
  return figures && (met || !options_.check) ? 0 : 1;
}

void Report::PrintTable() const {
  size_t names = 0, probes = 0;
  for (const Figure& figure : figures_) {
    names = std::max(names, figure.name.size());
    probes = std::max(probes, figure.probe_name.size());
  }
  absl::PrintF("%s%s\n", title_, options_.quick ? " (quick: no measurement)" : "");
  absl::PrintF("%-*s %12s %-9s %-*s %12s %8s  %s\n", static_cast<int>(names), "figure", "value", "unit",
               static_cast<int>(probes), "probe", "probe value", "ratio", "bar");
  for (const Figure& figure : figures_) {
    const std::string bar =
        figure.min_ratio ? absl::StrFormat(">= %.2f %s", *figure.min_ratio, IsMet(figure) ? "met" : "NOT MET") : "";
    absl::PrintF("%-*s %12.2f %-9s %-*s %12.2f %8.3f  %s\n", static_cast<int>(names), figure.name, figure.value,
                 figure.unit, static_cast<int>(probes), figure.probe_name, figure.probe, figure.ratio, bar);
  }
  for (const std::string& note : notes_) absl::PrintF("%s\n", note);
}

void Report::PrintJson() const {
  nlohmann::json lines = nlohmann::json::array();
  for (const Figure& figure : figures_) {
    nlohmann::json line = {{"name", figure.name},        {"unit", figure.unit},   {"value", figure.value},
                           {"probe", figure.probe_name}, {"ratio", figure.ratio}, {"probe_value", figure.probe}};
    if (figure.min_ratio) {
      line["min_ratio"] = *figure.min_ratio;
      line["met"] = IsMet(figure);
    }
    lines.push_back(std::move(line));
  }
  const nlohmann::json out = {{"benchmark", title_}, {"quick", options_.quick}, {"figures", lines}, {"notes", notes_}};
  absl::PrintF("%s\n", out.dump(2));
}

}  // namespace kvmesh
