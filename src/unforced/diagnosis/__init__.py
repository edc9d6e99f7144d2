"""What each remedy could win on a trained model: measured on the development set, without training."""
