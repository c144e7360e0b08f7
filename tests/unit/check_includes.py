#!/usr/bin/env python3
"""Checks the order of reading: which file may include which, and that the lists are complete.

- A top folder includes its own files, and those of the folders that MAY_USE names; a folder in it those that
  ARCHITECTURE.md's table says, in which it has a row.
- Within a folder a file includes only files above it in the folder's CMake source list.
  x.h stands where it is listed, else where x.c (x.cc, x.cu) is.
- Every source and header has a place in its list; no file name occurs twice in the tree.
- The list of common/ goes folder by folder, and its lower folders know no socket.
- x_state.h holds the inside of a family of files: only files named x... include it.
- Every test has a place in tests/CMakeLists.txt: without one nobody builds or runs it.
- The environment is read where configuration is: in common/start/cli.c and common/config/config.c.

Usage: check_includes.py ROOT
"""
import re
import sys
from pathlib import Path

MAY_USE = {"common": {"common"},
           "coordinator": {"coordinator", "common"},
           "session": {"session", "coordinator", "common"},
           "library": {"library", "session", "coordinator", "common"},
           "server": {"server", "coordinator", "common"},
           "worker": {"worker", "session", "coordinator", "common"}}
FOLDERS = tuple(MAY_USE)
NO_SOCKETS = ("base", "numbers", "config", "model", "update", "codec", "rows", "metrics")
SOCKETS = re.compile(r"<(zmq|netdb|sys/socket|sys/un|arpa/inet|netinet/\w+)\.h>")
SOURCES = (".c", ".cc", ".cpp", ".cu")
HEADERS = (".h", ".hpp", ".cuh")
CODE = SOURCES + HEADERS


def listed(cmake, folder):
    """Files named by a CMake file, in order, as paths relative to the folder."""
    names = []
    for line in cmake.read_text().splitlines():
        line = line.split("#", 1)[0]
        inner = re.search(r"include\(.*?/(\S+\.cmake)\)", line)
        if inner:
            for found in sorted(folder.rglob(Path(inner.group(1)).name)):
                names += listed(found, folder)
            continue
        for name in re.findall(r"[\w./${}-]+", line):
            name = re.sub(r"^.*\$\{[^}]*\}/", "", name)
            if name.endswith(CODE):
                names.append(name.removeprefix(folder.name + "/"))
    return names


def positions(folder):
    """Path in the folder -> its place in the reading order."""
    place = {}
    for i, name in enumerate(listed(folder / "CMakeLists.txt", folder)):
        place.setdefault(name, i)
    for name, i in list(place.items()):
        if name.endswith(SOURCES):
            for ending in HEADERS:
                header = str(Path(name).with_suffix(ending))
                if (folder / header).exists():
                    place.setdefault(header, i)
    return place


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if found:
            yield number, found.group(1)


def check_folders(root, errors):
    folders = []
    for name in dict.fromkeys(listed(root / "common/CMakeLists.txt", root / "common")):
        folder = str(Path(name).parent)
        if folder in folders[:-1]:
            errors.append(f"common/CMakeLists.txt: {name} stands behind files of {folders[-1]}/: "
                          "list each folder's files together")
        if folder not in folders[-1:]:
            folders.append(folder)
    for folder in NO_SOCKETS:
        for path in sorted((root / "common" / folder).rglob("*")):
            if path.suffix in CODE and SOCKETS.search(path.read_text(errors="replace")):
                errors.append(f"{path.relative_to(root)}: includes a header of sockets, which "
                              f"{', '.join(NO_SOCKETS)} do not know: it belongs to wire/ or start/")


def check_table(home, root, errors):
    above, may = [], {}
    for cell, uses in re.findall(r"^\| (`[a-z/]+`[^|]*) \|[^|]*\| ([^|]*) \|$", (root / "ARCHITECTURE.md").read_text(), re.M):
        first, *more = re.findall(r"`([a-z/]+)`", cell)
        for folder in [first, *(f"{Path(first).parts[0]}/{name}" for name in more)]:
            may[folder] = [folder, *(above if "above" in uses else re.findall(r"`([a-z/]+)`", uses))]
            above.append(folder)
    for top, name in sorted(home.values()):
        here = "/".join((top, *Path(name).parts[:-1])[:2])
        if here not in may and here != "common":
            errors.append(f"{top}/{name}: ARCHITECTURE.md's table has no row for {here}")
        for line, target in includes(root / top / name) if here in may else ():
            other, there = home.get(Path(target).name, (here, ""))
            folder = "/".join((other, *Path(there).parts[:-1])[:2])
            if folder != here and not any(folder == use or folder.startswith(use + "/") for use in may[here]):
                errors.append(f"{top}/{name}:{line}: includes {target} of {folder}/: ARCHITECTURE.md's table says that "
                              f"{here}/ may use {', '.join(may[here][1:]) or 'nothing of ours'}")


def check_families(home, root, errors):
    for top, name in sorted(home.values()):
        for line, target in includes(root / top / name):
            family = target.removesuffix("_state.h")
            if family != target and not Path(name).stem.startswith(family):
                errors.append(f"{top}/{name}:{line}: includes {target}, the inside of the files "
                              f"named {family}...: use what their other headers offer")


def check_unique(root, errors):
    seen = {}
    for top in FOLDERS + ("tests", "bench", "deploy"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in CODE:
                continue
            if path.name in seen:
                errors.append(f"{path.relative_to(root)}: {seen[path.name]} has the same name: "
                              "file names are unique in the tree, rename one")
            seen[path.name] = path.relative_to(root)


def check_tests(root, errors):
    text = re.sub(r"#.*", "", (root / "tests/CMakeLists.txt").read_text())
    scripts = set(re.findall(r"\bps_system_test\((\w+)", text))  # one of C may have the same name
    others = set(re.findall(r"\w+", re.sub(r"\bps_system_test\(\w+", "", text)))
    fuzzed = {f"fuzz_{name}" for name in re.findall(r"\bps_fuzz\((\w+)", text)}
    for pattern, names in (("unit/test_*.c", others), ("contract/test_*.c", others),
                           ("fuzz/fuzz_*.c", fuzzed), ("system/test_*.py", scripts | others)):
        for path in sorted((root / "tests").glob(pattern)):
            if path.stem not in names:
                errors.append(f"{path.relative_to(root)}: not in tests/CMakeLists.txt: nobody runs it")


def check_environment(root, errors):
    for top in FOLDERS:
        for path in sorted((root / top).rglob("*")):
            name = str(path.relative_to(root))
            if path.suffix not in CODE or name in ("common/start/cli.c", "common/config/config.c",
                                                   "common/base/fault_point.c"):
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if re.search(r"\bgetenv\(", line):
                    errors.append(f"{name}:{number}: getenv: read the variable in common/start/cli.c "
                                  "and pass its value on, or make it a configuration key")


def main(root):
    errors, place, home = [], {}, {}
    check_unique(root, errors)
    check_tests(root, errors)
    check_environment(root, errors)
    for top in FOLDERS:
        place[top] = positions(root / top)
        for path in sorted((root / top).rglob("*")):
            if path.suffix in CODE:
                home[path.name] = (top, str(path.relative_to(root / top)))
    check_folders(root, errors)
    check_families(home, root, errors)
    check_table(home, root, errors)
    for top, name in sorted(home.values()):
        here = place[top].get(name)
        if here is None:
            errors.append(f"{top}/{name}: not in the source list of {top}/CMakeLists.txt: add it "
                          "behind everything that it includes" +
                          (" (a header without a .c is listed too)" if name.endswith(HEADERS) else ""))
            continue
        for line, target in includes(root / top / name):
            other, there = home.get(Path(target).name, (None, None))
            where = f"{top}/{name}:{line}: includes {target}"
            if other is None:
                errors.append(f"{where}, which is not in {', '.join(FOLDERS)}: use <> for what "
                              "is not ours")
            elif other not in MAY_USE[top]:
                errors.append(f"{where} of {other}/: {top}/ may use "
                              f"{' and '.join(sorted(MAY_USE[top]))} alone; move what both need "
                              "to common/")
            elif other == top and Path(there).stem != Path(name).stem and \
                    place[top].get(there, -1) >= here:
                errors.append(f"{where}, which stands below it in {top}/CMakeLists.txt: the list "
                              f"is the reading order, move {Path(name).stem} below "
                              f"{Path(there).stem} (or list {Path(target).name} by itself, "
                              "further up)")
    for error in errors:
        print(error)
    print(f"{len(home)} files, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
