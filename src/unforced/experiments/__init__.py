"""Comparisons: plan runs, execute them, test the differences."""
