#!/usr/bin/env bash
# Installs what kvmesh needs to build and run on Debian 12, from Debian's packages. Does nothing when all is there.
#   --tests   also promtool, which comes with prometheus, and what the examples' test needs
set -euo pipefail

packages=(
  ccache clang clang-format cmake g++ git libabsl-dev libbenchmark-dev libcivetweb-dev libcli11-dev libeigen3-dev
  libgmock-dev libgrpc++-dev libgtest-dev libhwy-dev libprotobuf-dev librocksdb-dev libssl-dev liburing-dev libxxhash-dev
  ninja-build nlohmann-json3-dev openssl pkg-config prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc
  python3)
[ "${1:-}" != --tests ] || packages+=(prometheus python3-grpcio python3-protobuf)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_deps: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
