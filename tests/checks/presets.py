#!/usr/bin/env python3
"""CMakePresets.json has the configurations that tests/run.sh and the README name, each in a folder of its own."""

import json

import tree

WANTED = {
    "release": {"CMAKE_BUILD_TYPE": "Release"},
    "debug": {"CMAKE_BUILD_TYPE": "Debug"},
    "asan": {"KVMESH_SANITIZE": "address,undefined"},
    "tsan": {"KVMESH_SANITIZE": "thread"},
}


def main():
    presets = json.loads(tree.read("CMakePresets.json"))
    configure = {preset["name"]: preset for preset in presets["configurePresets"]}
    build = {preset["name"]: preset["configurePreset"] for preset in presets["buildPresets"]}
    faults = []
    folders = [preset["binaryDir"] for preset in configure.values() if "binaryDir" in preset]
    if len(set(folders)) != len(folders):
        faults.append("two presets share a folder")
    for name, variables in WANTED.items():
        if name not in configure:
            faults.append("no configure preset %s" % name)
            continue
        has = configure[name].get("cacheVariables", {})
        for variable, value in variables.items():
            if has.get(variable) != value:
                faults.append("%s: %s is %s, must be %s" % (name, variable, has.get(variable), value))
        if build.get(name) != name:
            faults.append("no build preset %s" % name)
    tree.finish(faults)


if __name__ == "__main__":
    main()
