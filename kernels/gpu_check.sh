#!/usr/bin/env bash
# Builds kernels/ alone for this machine's GPU, checks every CUDA kernel against the reference, and times them.
#   gpu_check.sh [--build DIR] [--json FILE] [--no-times]
# Needs a C++20 compiler, nvcc and cmake. Prints a short table. Without a GPU it builds, runs the host tests of the
# kernels' bodies where GoogleTest is at hand, and says so. Exit status: 0 right, 1 wrong or not built, 2 wrong usage.
set -euo pipefail

usage() {
  echo "gpu_check.sh: $1" >&2
  echo "usage: gpu_check.sh [--build DIR] [--json FILE] [--no-times]" >&2
  exit 2
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="build-gpu-check"
check=()
while (($#)); do
  case "$1" in
    --build)
      [[ $# -ge 2 && -n "$2" ]] || usage "--build needs a folder"
      build="$2"
      shift 2
      ;;
    --json)
      [[ $# -ge 2 && -n "$2" ]] || usage "--json needs a file"
      check+=(--json "$2")
      shift 2
      ;;
    --no-times)
      check+=(--no-times)
      shift
      ;;
    *) usage "bad argument $1" ;;
  esac
done

nvcc="$(command -v nvcc || true)"
[[ -n "$nvcc" || ! -x /usr/local/cuda/bin/nvcc ]] || nvcc=/usr/local/cuda/bin/nvcc
if [[ -z "$nvcc" ]]; then
  echo "gpu_check.sh: nvcc is not installed" >&2
  exit 1
fi

# "9.0" of the first GPU becomes 90; without one the set that every build compiles.
capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ' || true)"
[[ "$capability" =~ ^[0-9]+$ ]] || capability=""
options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="${capability:-90}")
[[ -z "$capability" ]] || options+=(-DKVMESH_CUDA_FULL=ON)

# Host tests where GoogleTest and the tests are there.
tests=OFF
if [[ -d "$here/../tests/unit/kernels/cuda" && -e /usr/include/gtest/gtest.h ]]; then
  tests=ON
fi
targets=(check_kernels_cuda)
[[ $tests == OFF ]] || targets+=(kernels_cuda_test)

jobs="$(nproc)"
mkdir -p "$build"
log="$build/gpu_check.log"
cmake -S "$here" -B "$build" "${options[@]}" -DKVMESH_KERNELS_TESTS=$tests >"$log" 2>&1 &&
  cmake --build "$build" --parallel "$((jobs > 16 ? 16 : jobs))" --target "${targets[@]}" >>"$log" 2>&1 || {
  tail -n 40 "$log" >&2
  echo "gpu_check.sh: the build failed; see $log" >&2
  exit 1
}

if [[ $tests == ON ]]; then
  "$build/kernels_cuda_test" --gtest_brief=1 --gtest_filter='-*GpuTest*'
fi
"$build/check_kernels_cuda" "${check[@]}"
