"""Recipes: TOML files that describe a run or a comparison."""
