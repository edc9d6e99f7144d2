"""Comparison of variants and seeds: plan, run, judge."""

from unforced.compare.run import compare

__all__ = ["compare"]
