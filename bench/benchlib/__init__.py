"""Shared by the programs of bench/: configurations, PyTorch's side, runs, plots."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../deploy"))  # psrunlib
