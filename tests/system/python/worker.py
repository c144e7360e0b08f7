"""A rank of the jobs of test_python.py and others beside it: python3 worker.py CASE. Prints what the test reads."""
import sys

import torch

import compiled_cases  # noqa: F401  (these make themselves known to cases)
import ddp_cases  # noqa: F401
import device_cases  # noqa: F401
import form_cases  # noqa: F401
import group_cases  # noqa: F401
import misuse_cases  # noqa: F401
import recovery_cases  # noqa: F401
import state_cases  # noqa: F401
import step_cases  # noqa: F401
import weights_cases  # noqa: F401
from cases import CASES

if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]]()
