"""The library inside other people's training loops."""
