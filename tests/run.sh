#!/usr/bin/env bash
# Builds and runs all tests.
#   --long       at least 100 rounds per fault
#   --sanitize   also ASan+UBSan on everything, and TSan, without suppressions, on every unit test whose target links
#                none of gRPC, UCX, RocksDB
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

./deploy/install_deps.sh --tests
# Programs that were stopped by a sanitizer say so, and fail.
export UBSAN_OPTIONS=print_stacktrace=1
jobs=$(nproc)
failed=()

# build_and_test PRESET TARGET [ctest arguments]
build_and_test() {
  local preset=$1 target=$2 folder=build
  shift 2
  [ "$preset" = release ] || folder=build-$preset
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --target "$target"
  ctest --test-dir "$folder" -j "$jobs" --output-on-failure "$@" || failed+=("$preset")
  show_skipped "$folder"
}

# Tests within programs that passed; programs of which nothing ran are in ctest's own summary.
show_skipped() {
  local skipped
  skipped=$(grep -ahoE '^\[  SKIPPED \] [A-Za-z0-9_/]+[.][A-Za-z0-9_/]+' "$1/Testing/Temporary/LastTest.log" | sort -u || true)
  [ -z "$skipped" ] || printf 'Skipped tests:\n%s\n' "$skipped"
}

build_and_test release all $([ $long = 0 ] || echo -C Long)
if [ $sanitize = 1 ]; then
  build_and_test asan all
  build_and_test tsan tsan_tests -L tsan
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "tests/run.sh: failed: ${failed[*]}" >&2
  exit 1
fi
