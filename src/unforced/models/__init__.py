"""Networks. They know no training method: objectives and decoders use them through `unforced.protocols`."""
