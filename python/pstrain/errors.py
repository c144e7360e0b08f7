"""The exceptions of the package. Each message names the rank, and the parameter where there
is one at fault."""
from __future__ import annotations


class Error(RuntimeError):
    """Anything that pstrain refuses or that fails in it."""


class PeerError(Error):
    """Another member of the job has failed or ended. The message quotes its reason."""

    of_launched = False  # the job is one that this process has started, by pstrain.launch


class TimeoutError(Error):  # noqa: A001  (its own name, as in the library)
    """A wait has passed its deadline. The message names who is missing."""


class InputError(Error, ValueError):
    """An argument, a tensor or a model that cannot be used. The message says what can be."""
