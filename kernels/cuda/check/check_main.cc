// Checks the CUDA kernels against the reference on this machine's GPU and times them.
//   check_kernels_cuda [--json FILE] [--no-times]
// Exit status: 0 when every value was right or there is no GPU, 1 for a wrong value, 2 for wrong usage.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/cuda/check/checks.h"
#include "kernels/cuda/check/timing.h"

namespace {

struct Flags {
  std::string json;
  bool times = true;
};

bool ReadFlags(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--no-times") == 0) {
      flags.times = false;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc && argv[i + 1][0] != '\0') {
      flags.json = argv[++i];
    } else {
      std::fprintf(stderr,
                   "check_kernels_cuda: bad argument %s\nusage: check_kernels_cuda [--json FILE] [--no-times]\n",
                   argv[i]);
      return false;
    }
  }
  return true;
}

struct Outcome {
  std::string device;  // empty: none
  int checks = 0;
  std::vector<std::string> faults;
  std::vector<kvmesh::cuda::Timing> timings;
};

// What names and messages hold is plain but for quotes and backslashes.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void WriteJson(const Outcome& outcome, std::ostream& out) {
  out << "{\"device\": " << (outcome.device.empty() ? "null" : Quoted(outcome.device))
      << ", \"checks\": " << outcome.checks << ", \"faults\": [";
  for (size_t i = 0; i < outcome.faults.size(); ++i) out << (i == 0 ? "" : ", ") << Quoted(outcome.faults[i]);
  out << "], \"timings\": [";
  for (size_t i = 0; i < outcome.timings.size(); ++i) {
    const kvmesh::cuda::Timing& t = outcome.timings[i];
    out << (i == 0 ? "\n" : ",\n") << "  {\"name\": " << Quoted(t.name) << ", \"seconds\": " << t.seconds
        << ", \"bytes\": " << t.bytes << ", \"tokens_per_second\": " << t.tokens / t.seconds
        << ", \"bytes_per_second\": " << t.bandwidth() << ", \"of_probe\": " << t.ratio() << "}";
  }
  out << "]}\n";
}

void PrintTimings(const Outcome& outcome) {
  std::printf("%-52s %12s %10s %9s %12s\n", "kernel", "us", "GB/s", "of probe", "tokens/s");
  for (const kvmesh::cuda::Timing& t : outcome.timings) {
    std::printf("%-52s %12.1f %10.0f %9.2f %12.0f\n", t.name.c_str(), t.seconds * 1e6, t.bandwidth() * 1e-9, t.ratio(),
                t.tokens / t.seconds);
  }
}

// Name of the current device; empty where there is none.
std::string DeviceName() {
  int count = 0;
  cudaDeviceProp properties;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    return "";
  }
  return properties.name;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  if (!ReadFlags(argc, argv, flags)) return 2;
  Outcome outcome{.device = DeviceName(), .checks = 0, .faults = {}, .timings = {}};
  if (outcome.device.empty()) {
    std::printf("no GPU: built and host-checked only\n");
  } else {
    kvmesh::cuda::CheckAll([&](const std::string& name, const std::string& fault) {
      ++outcome.checks;
      if (fault.empty()) return;
      outcome.faults.push_back(name + ": " + fault);
      std::printf("WRONG %s\n", outcome.faults.back().c_str());
    });
    std::printf("%s: %d checks, %zu wrong\n", outcome.device.c_str(), outcome.checks, outcome.faults.size());
    if (flags.times && outcome.faults.empty()) {
      outcome.timings = kvmesh::cuda::TimeKernels();
      PrintTimings(outcome);
    }
  }
  if (!flags.json.empty()) {
    std::ofstream file(flags.json);
    WriteJson(outcome, file);
    file.flush();
    if (!file) {
      std::fprintf(stderr, "check_kernels_cuda: cannot write %s\n", flags.json.c_str());
      return 1;
    }
  }
  return outcome.faults.empty() ? 0 : 1;
}
