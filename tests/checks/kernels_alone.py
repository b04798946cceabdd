#!/usr/bin/env python3
"""A copy of kernels/ alone, in an empty folder, builds with a C++20 compiler and nothing else."""

import os
import shutil
import subprocess
import sys
import tempfile

import tree


def run(words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout)
        sys.exit(1)


def main():
    cmake = tree.need("cmake")
    with tempfile.TemporaryDirectory(prefix="kvmesh_kernels_") as folder:
        source = os.path.join(folder, "kernels")
        build = os.path.join(folder, "build")
        shutil.copytree(os.path.join(tree.ROOT, "kernels"), source)
        run([cmake, "-G", "Ninja", "-S", source, "-B", build, "-DKVMESH_KERNELS_PORTABLE=ON", "-DKVMESH_CUDA=OFF"])
        run([cmake, "--build", build, "--parallel", "2"])
        assert os.path.isfile(os.path.join(build, "libkvmesh_kernels.a"))
        assert os.path.isfile(os.path.join(build, "time_kernels"))


if __name__ == "__main__":
    main()
