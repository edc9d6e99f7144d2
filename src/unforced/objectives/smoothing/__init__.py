"""Parts shared by token-level and sequence-level loss smoothing."""
