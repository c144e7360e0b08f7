"""Shared by the programs of bench/: configurations, PyTorch's side, runs, plots."""
