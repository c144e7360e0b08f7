"""Where psrun's programs are, and its version: beside an installed psrun, or in a checkout."""
import os
import re

try:
    from . import installed  # CMake writes it when it installs psrun
except ImportError:
    installed = None

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))  # of a checkout


def version():
    """CMakeLists.txt is the one place that says it."""
    if installed:
        return installed.VERSION
    try:
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as f:
            return re.search(r"project\(pstrain VERSION ([0-9.]+)", f.read()).group(1)
    except (OSError, AttributeError):
        raise SystemExit(f"psrun: {ROOT} is no checkout of pstrain: psrun needs all of it, "
                         "or an installation (cmake --install)") from None


def default_build_dir():
    """The folder whose bin/ has the programs."""
    return prefix() or os.path.join(ROOT, "build/release")


def prefix():
    """Of an installation; else, and in a wheel, empty."""
    to_prefix = installed.TO_PREFIX if installed else ""
    return os.path.normpath(os.path.join(HERE, to_prefix)) if to_prefix else ""


def is_wheel():
    return bool(installed) and not prefix()


def program(build_dir, name):
    """An installation keeps what is for psrun alone out of bin/."""
    path = os.path.join(build_dir, "bin", name)
    if prefix() and not os.path.exists(path):
        internal = os.path.join(prefix(), installed.LIBEXEC, name)
        return internal if os.path.exists(internal) else path
    return path
