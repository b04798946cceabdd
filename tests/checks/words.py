#!/usr/bin/env python3
"""No tracked file speaks of unfinished work, of how the work was done, or of one person's machine."""

import re

import tree

# Written so that this file does not match itself.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K|unimpl[e]mented|not impl[e]mented yet|place[h]older|dum[m]y)\b")
FOREIGN = re.compile(
    r"\b(sub[a]gent|help[e]r agent|th[i]s session|develop[e]r session|farm-(bench|studio))\b|"
    r"(^|[\s\"'`(=:])/(w[o]rk|h[o]me|r[o]ot|Us[e]rs)/",
    re.IGNORECASE,
)
TEXT = (".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".proto", ".md", ".txt", ".cmake", ".json", ".yaml", ".yml", ".toml")


def main():
    faults = []
    for path in tree.tracked():
        if not (path.endswith(TEXT) or "." not in path.rsplit("/", 1)[-1]):
            continue
        for number, line in enumerate(tree.read(path).splitlines(), 1):
            for pattern in (UNFINISHED, FOREIGN):
                found = pattern.search(line)
                if found:
                    faults.append("%s:%d: %s" % (path, number, found.group(0).strip()))
    tree.finish(faults)


if __name__ == "__main__":
    main()
