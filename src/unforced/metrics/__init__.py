"""Metrics, one file each; every one is a function of summed per-example statistics."""
