#!/usr/bin/env python3
"""Every C++ file is as .clang-format has it."""

import subprocess
import sys

import tree


def main():
    clang_format = tree.need("clang-format")
    files = [path for path in tree.tracked() if path.endswith(tree.CPP)]
    sys.exit(subprocess.run([clang_format, "--dry-run", "-Werror"] + files, cwd=tree.ROOT).returncode)


if __name__ == "__main__":
    main()
