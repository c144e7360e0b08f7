#!/usr/bin/env python3
"""Checks that a function has at most 80 lines, and that no two static functions of C share their name: gdb, perf
and ctags then know which one is meant. Tests may do both. And that bench/ stays as small as it is: 6,000 lines beside
its results.

Usage: check_sizes.py ROOT
"""
import ast
import re
import sys
from pathlib import Path

FUNCTION_LINES, BENCH_LINES = 80, 6000
FOLDERS = ("common", "coordinator", "session", "library", "server", "worker", "python", "deploy", "bench")
STATIC = re.compile(r"^(?:\w+\([^)]*\)\s+)?static (?:[\w*]+[\s*]+)+(\w+)\(", re.M)


def of_c(lines):
    """(line, length) of each function: clang-format puts its braces into the first column."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            yield start, number - start + 1
            start = None


def of_python(lines):
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def check(name, path):
    if path.suffix not in ("", ".py", ".c", ".h", ".cc", ".cu"):
        return
    lines = path.read_text(errors="replace").splitlines()
    script = not path.suffix and bool(lines) and lines[0].startswith("#!") and "python" in lines[0]
    if not path.suffix and not script:
        return
    for line, length in of_python(lines) if script or path.suffix == ".py" else of_c(lines):
        if length > FUNCTION_LINES:
            yield f"{name}:{line}: a function of {length} lines, at most {FUNCTION_LINES}: split it"


def shared_names(root):
    """An error for each static function whose name another file has, too."""
    owner = {}
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*")
                       if path.suffix in (".c", ".h", ".cc", ".cu")):
        name = str(path.relative_to(root))
        for function in set(STATIC.findall(path.read_text())):
            if owner.setdefault(function, name) != name:
                yield f"{name}: static {function}() is in {owner[function]}, too: name it after its thing"


def of_bench(root):
    lines = sum(len(path.read_text().splitlines()) for path in (root / "bench").rglob("*")
                if path.suffix in ("", ".py", ".c", ".txt") and path.is_file())
    if lines > BENCH_LINES:
        yield f"bench: {lines:,} lines, at most {BENCH_LINES:,}: which of it does no user and no claim need?"


def main(root):
    errors = [error for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
              if path.is_file() for error in check(str(path.relative_to(root)), path)]
    errors += [*shared_names(root), *of_bench(root)]
    print("\n".join(errors) or "functions are short enough, and their names are their own")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
