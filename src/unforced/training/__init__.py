"""The training loop, run folders, checkpoints and evaluation."""
