"""Tensor helpers: masks, random streams, decoder state rows, relaxations, top-k, kernels."""
