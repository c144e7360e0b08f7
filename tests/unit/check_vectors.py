#!/usr/bin/env python3
"""Checks that GCC makes vector code of every loop under `#pragma omp simd` for AVX2 and AVX-512.

The pragma is a wish: a loop that the compiler can't vectorise is compiled as it stands, many times
slower, without a warning. The sources are those that are built once per level (common/levels.cmake),
with the flags of compile_commands.json, optimised as in a release.

Usage: check_vectors.py ROOT BUILD
"""
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
PRAGMA = "#pragma omp simd"
SAID = re.compile(r"^(\S+?):(\d+):\d+: (missed: couldn't vectorize loop|optimized: loop vectorized)", re.M)


def command_of(entry):
    """The compiler's command, or None for a source that is built once."""
    words = shlex.split(entry["command"])
    if Path(entry["file"]).parent.name != "levels":
        return None
    if Path(words[0]).name == "ccache":
        words = words[1:]
    words = words[:words.index("-o")] + words[words.index("-o") + 2:]
    words = [w for w in words if not w.startswith(("-fsanitize", "-Werror"))]
    return words + ["-w", "-O3", "-g0"]


def loops(path):
    """Line of the pragma of each loop that has one, by the lines where GCC may see that loop."""
    lines, found = path.read_text().splitlines(), {}
    for number, line in enumerate(lines, 1):
        if line.strip().startswith(PRAGMA):
            head = next(n for n in range(number + 1, len(lines) + 1) if "for (" in lines[n - 1])
            found.update({number: number, head: number, head + 1: number})
    return found


def missed(said, by_file):
    """(path, line of the pragma) of loops that are no vector code. What GCC says of a loop directly after it has
    vectorised it is about the elements that are left over."""
    found, before = set(), None
    for path, line, what in said:
        place = path, by_file[path].get(int(line))
        if what.startswith("missed") and place[1] and before != (place, True):
            found.add(place)
        before = place, not what.startswith("missed")
    return sorted(found)


def check(entry):
    def compiler(*words):
        return subprocess.run([*command_of(entry), *words], cwd=entry["directory"], capture_output=True, text=True)

    done = compiler("-E")
    if done.returncode == 0 and PRAGMA not in done.stdout:
        return []
    done = compiler("-o", "/dev/null", "-fopt-info-vec-optimized-missed")
    if done.returncode:
        return [done.stderr]
    said = SAID.findall(done.stderr)
    by_file = {path: loops(Path(entry["directory"], path)) for path, *_ in said}
    return [f"{path}:{line}: this loop does not become vector code in {Path(entry['file']).stem}: no branch in it, and no "
            f"&& or ?: on comparisons of floats that depend on each other" for path, line in missed(said, by_file)]


def main(root, build):
    known = json.loads((build / "compile_commands.json").read_text())
    entries = [e for e in known if command_of(e)]
    version = entries and subprocess.run([command_of(entries[0])[0], "--version"], capture_output=True,
                                         text=True).stdout
    if not entries or "Free Software Foundation" not in version:
        print("skipped: no GCC, or no sources that are built once per level")
        return SKIPPED
    with ThreadPoolExecutor(2) as pool:
        errors = sorted({error for found in pool.map(check, entries) for error in found})
    print("\n".join(errors).replace(f"{root}/", "") or f"{len(entries)} sources, all loops vectorise")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
