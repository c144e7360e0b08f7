"""What the programs of bench/ share: configurations, PyTorch's side, runs, plots."""
