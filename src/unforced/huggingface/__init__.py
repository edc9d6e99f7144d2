"""Hugging Face models: wrappers, codecs and trainers."""
