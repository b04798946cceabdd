#!/usr/bin/env python3
"""Includes obey the layer table of cmake/kvmesh.cmake, and each leaf folder says what it is.

A leaf is the target of a file: the nearest folder upwards whose CMakeLists.txt calls kvmesh_library or kvmesh_program.
A folder of headers alone is a leaf without a target.
"""

import os
import re

import tree

TOPS = ("proto", "coordinator", "worker", "kvstore", "kernels", "client")
LAYER = re.compile(r'^set\(KVMESH_LAYER_(\w+) "([^"]*)"\)', re.MULTILINE)
TARGET = re.compile(r"^\s*kvmesh_(library|program)\(", re.MULTILINE)


def layer_table():
    table = {name: allowed.split(";") if allowed else [] for name, allowed in
             LAYER.findall(tree.read("cmake/kvmesh.cmake"))}
    assert len(table) >= 10, "cmake/kvmesh.cmake has no layer table in the known form"
    return table


def within(name, prefix):
    return name == prefix or name.startswith(prefix + "_")


class Leaves:
    """Names of folders as cmake/kvmesh.cmake makes them: kvstore/tiers/disk is kvstore_tiers_disk."""

    def __init__(self):
        self.known = {}

    def folder(self, path):
        folder = os.path.dirname(path)
        if folder not in self.known:
            self.known[folder] = self.find(folder)
        return self.known[folder]

    @staticmethod
    def find(folder):
        at = folder
        while at:
            lists = os.path.join(tree.ROOT, at, "CMakeLists.txt")
            if os.path.isfile(lists) and TARGET.search(tree.read(lists)):
                return at
            at = os.path.dirname(at)
        return folder

    def name(self, path):
        return self.folder(path).replace("/", "_")


def include_faults(path, leaves, table):
    own = leaves.name(path)
    layers = [layer for layer in table if within(own, layer)]
    if not layers:
        return ["%s: %s belongs to no layer" % (path, own)]
    allowed = table[max(layers, key=len)]
    faults = []
    for included in tree.includes(path):
        top = included.split("/")[0]
        if top == "tests":
            faults.append("%s: includes %s; nothing depends on tests" % (path, included))
            continue
        if top == "kvmesh":
            dep = "proto"
        elif top in TOPS:
            dep = leaves.name(included)
        else:
            continue
        if dep != own and not any(within(dep, prefix) for prefix in allowed):
            faults.append("%s: includes %s; %s may not depend on %s" % (path, included, own, dep))
    return faults


def folder_faults(sources, leaves):
    faults = []
    for leaf in sorted({leaves.folder(path) for path in sources}):
        inside = [path for path in sources if leaves.folder(path) == leaf]
        if not os.path.isfile(os.path.join(tree.ROOT, leaf, "README.md")):
            faults.append("%s: no README.md" % leaf)
        headers_alone = all(path.endswith((".h", ".cuh")) for path in inside)
        if not headers_alone and not os.path.isfile(os.path.join(tree.ROOT, leaf, "CMakeLists.txt")):
            faults.append("%s: no CMakeLists.txt" % leaf)
    return faults


def main():
    table = layer_table()
    leaves = Leaves()
    sources = [path for path in tree.tracked() if path.startswith(tuple(top + "/" for top in TOPS[1:])) and
               path.endswith(tree.CPP)]
    faults = folder_faults(sources, leaves)
    for path in sources:
        faults += include_faults(path, leaves, table)
    print("%d files in %d leaves" % (len(sources), len(set(map(leaves.folder, sources)))))
    tree.finish(faults)


if __name__ == "__main__":
    main()
