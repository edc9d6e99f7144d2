"""Turning scores into outputs: one search loop, many selectors."""
