#!/usr/bin/env python3
"""Checks that a file of code has at most 600 lines and a function at most 45, except in tests/.

Usage: check_sizes.py ROOT
"""
import ast
import sys
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 600, 45
FOLDERS = ("common", "coordinator", "session", "library", "server", "worker", "python", "deploy", "bench")
MAY_BE_LONGER = {
    "python/pstrain/optimizer.py": "one class, as torch.optim.Optimizer is",
}


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
    if len(lines) > FILE_LINES and name not in MAY_BE_LONGER:
        yield f"{name}: {len(lines)} lines, at most {FILE_LINES}: split it"
    for line, length in of_python(lines) if script or path.suffix == ".py" else of_c(lines):
        if length > FUNCTION_LINES:
            yield f"{name}:{line}: a function of {length} lines, at most {FUNCTION_LINES}: split it"


def main(root):
    errors = [error for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
              if path.is_file() for error in check(str(path.relative_to(root)), path)]
    print("\n".join(errors) or "all files and functions are short enough")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
