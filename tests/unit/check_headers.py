#!/usr/bin/env python3
"""Every header includes what it needs and has a guard: it compiles by itself, included twice. The build has shown that
of a header that its own source includes first and whose guard is plain to see; the others are compiled here.

The flags come from compile_commands.json: those of the header's own source (x.c for x_state.h,
too), else those of a C file (of x.hpp, a C++ file) in its top folder. A header whose source exists
but is not part of this build (CUDA, NCCL, Gloo) is skipped.

Usage: check_headers.py ROOT BUILD
"""
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("common", "coordinator", "session", "library", "server", "worker")


def commands(build):
    """Source path -> its compiler command without source and output."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if Path(words[0]).name == "ccache":
            words = words[1:]
        words = words[:words.index("-o")] + words[words.index("-o") + 2:]
        words = [w for w in words if w not in ("-c", entry["file"])]
        found[Path(entry["file"])] = words
    return found


def command_for(header, root, known):
    """The command to check a header with; None when it is not part of this build."""
    stem = header.with_name(header.stem.removesuffix("_state"))
    siblings = [own.with_suffix(s) for own in (header, stem) for s in (".c", ".cc", ".cpp", ".cu")]
    if any(s.exists() for s in siblings) and not any(s in known for s in siblings):
        return None
    language = ".cc" if header.suffix == ".hpp" else ".c"
    for sibling in siblings:
        if sibling in known and sibling.suffix == language:
            return known[sibling]
    top = root / header.relative_to(root).parts[0]
    for source, command in known.items():
        if source.suffix == language and top in source.parents:
            return command
    return None


def is_shown(header, known):
    """Whether the build has compiled it by itself already."""
    source = header.with_suffix(".c")
    if source not in known or not re.search(r"(?m)^#ifndef (\w+)\n#define \1$", header.read_text()):
        return False
    first = re.search(r'(?m)^#\s*include\s+["<](\S+)[">]', source.read_text())
    return first is not None and first[1] == header.name


def check(header, command):
    text = f'#include "{header}"\n' * 2
    language = "c++" if header.suffix == ".hpp" else "c"
    done = subprocess.run(command + ["-fsyntax-only", "-Werror", "-x", language, "-"],
                          input=text, capture_output=True, text=True)
    return re.sub(r"(?m)^In file included from <stdin>.*\n", "", done.stderr) if done.returncode else ""


def main(root, build):
    known, jobs, skipped, shown = commands(build), [], [], 0
    for top in FOLDERS:
        for header in sorted(p for p in (root / top).rglob("*.h*") if p.suffix in (".h", ".hpp")):
            command = command_for(header, root, known)
            if is_shown(header, known):
                shown += 1
            elif command:
                jobs.append((header, command))
            else:
                skipped.append(str(header.relative_to(root)))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda job: check(*job), jobs))
    failed = [(job[0], text) for job, text in zip(jobs, results) if text]
    for header, text in failed:
        print(f"{header.relative_to(root)}: does not compile by itself: include what it uses, "
              f"and guard it with #ifndef\n{text}")
    if skipped:
        print("not part of this build:", " ".join(skipped))
    print(f"{shown} headers that their own sources show, {len(jobs)} others, {len(failed)} errors")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
