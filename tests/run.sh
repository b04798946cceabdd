#!/usr/bin/env bash
# Builds and runs all tests.
#   --long       at least 100 rounds per fault
#   --sanitize   ASan+UBSan on everything; TSan on every target that links none of gRPC, UCX, RocksDB
set -euo pipefail
cd "$(dirname "$0")/.."

long=0
sanitize=0
for argument in "$@"; do
  case "$argument" in
    --long) long=1 ;;
    --sanitize) sanitize=1 ;;
    *) echo "tests/run.sh: unknown flag $argument" >&2; exit 2 ;;
  esac
done

./deploy/install_deps.sh
export KVMESH_FAULT_ROUNDS=$([ $long = 1 ] && echo 100 || echo 5)

# build_and_test PRESET [ctest arguments]
build_and_test() {
  local preset=$1
  shift
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  ctest --test-dir "$(cmake_folder "$preset")" --output-on-failure "$@"
}
cmake_folder() { [ "$1" = release ] && echo build || echo "build-$1"; }

build_and_test release
if [ $sanitize = 1 ]; then
  build_and_test asan
  cmake --preset tsan >/dev/null
  cmake --build --preset tsan --target tsan_tests
  ctest --test-dir build-tsan --output-on-failure -L tsan
fi
