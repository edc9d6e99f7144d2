"""unforced: train, decode and sample sequence models beyond teacher forcing."""
