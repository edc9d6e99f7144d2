"""Training objectives, one file a method. They meet models only through ``unforced.protocols``."""
