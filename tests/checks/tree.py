"""What the checks share: the files of the tree, its includes, and how a check ends."""

import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = 77
CPP = (".cc", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def skip(reason):
    print("skipped: " + reason)
    sys.exit(SKIPPED)


def need(tool):
    path = shutil.which(tool)
    if path is None:
        skip(tool + " is not installed")
    return path


def finish(faults):
    """Prints the faults and ends the check."""
    for fault in faults:
        print(fault)
    print("%d faults" % len(faults))
    sys.exit(1 if faults else 0)


def tracked():
    """The tracked files that exist, relative to ROOT. A tree without git has no such list: skipped."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and os.path.isfile(os.path.join(ROOT, name))]


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def includes(name):
    return INCLUDE.findall(read(name))
