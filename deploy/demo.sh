#!/usr/bin/env bash
# Installs, builds (Release) and plays a multi-turn conversation set over a local cluster of real processes.
# Exits non-zero when any answer differs from an uncached run, or a tier or the peers gave nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

./deploy/install_deps.sh
cmake --preset release >/dev/null
cmake --build --preset release --target kvmesh kvmesh-coordinator kvmesh-worker
exec python3 deploy/demo.py --bin build/bin --model deploy/model "$@"
