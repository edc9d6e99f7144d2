"""Parts shared by the objectives of loss smoothing."""
