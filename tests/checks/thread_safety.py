#!/usr/bin/env python3
"""clang's -Wthread-safety over the sources that hold locks: those that include kvstore/base/mutex.h themselves or in a
header of their own folder.

Usage: thread_safety.py compile_commands.json
What passed is kept beside that file and looked at again only when it, or a file of the tree that it includes, changed.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import shlex
import subprocess
import sys

import tree

MUTEX = "kvstore/base/mutex.h"
KEPT = ("-I", "-D", "-std=")


def in_tree(included):
    return [path for path in included if os.path.isfile(os.path.join(tree.ROOT, path))]


@functools.lru_cache(maxsize=None)
def locks(path):
    """Whether a file sees mutex.h through includes of its own folder."""
    included = tree.includes(path)
    return MUTEX in included or any(
        locks(header) for header in in_tree(included) if os.path.dirname(header) == os.path.dirname(path)
    )


@functools.lru_cache(maxsize=None)
def closure(path):
    """The file and all files of the tree that it includes."""
    found, waiting = {path}, [path]
    while waiting:
        for header in in_tree(tree.includes(waiting.pop())):
            if header not in found:
                found.add(header)
                waiting.append(header)
    return sorted(found)


def command(clang, entry):
    words = shlex.split(entry["command"])
    kept = []
    for i, word in enumerate(words):
        if word == "-isystem":
            kept += [word, words[i + 1]]
        elif word.startswith(KEPT):
            kept.append(word)
    return [clang, "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", entry["file"]] + kept


def digest(path, words):
    sha = hashlib.sha256("\0".join(words).encode())
    for name in closure(path):
        sha.update(tree.read(name).encode())
    return sha.hexdigest()


def check(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.stderr if done.returncode != 0 else None


def main():
    clang = tree.need("clang++")
    passed_file = sys.argv[1] + ".thread_safety"
    passed = set()
    if os.path.isfile(passed_file):
        with open(passed_file, encoding="utf-8") as file:
            passed = set(file.read().split())
    with open(sys.argv[1], encoding="utf-8") as file:
        entries = {os.path.relpath(entry["file"], tree.ROOT): entry for entry in json.load(file)}
    jobs = {}
    for path, entry in entries.items():
        if in_tree([path]) and not path.startswith(("..", "tests/", "build")) and locks(path):
            words = command(clang, entry)
            jobs[digest(path, words)] = (words, entry["directory"])
    assert jobs, "no source holds a lock?"
    waiting = [key for key in jobs if key not in passed]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        faults = dict(zip(waiting, pool.map(lambda key: check(*jobs[key]), waiting)))
    with open(passed_file, "w", encoding="utf-8") as file:
        file.write("\n".join(key for key in jobs if faults.get(key) is None))
    print("%d sources, %d of them looked at anew" % (len(jobs), len(waiting)))
    tree.finish([fault for fault in faults.values() if fault])


if __name__ == "__main__":
    main()
