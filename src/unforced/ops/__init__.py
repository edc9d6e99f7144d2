"""Tensor operations shared by models, decoders and objectives."""
