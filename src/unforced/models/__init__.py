"""Networks. They know nothing of methods: everything goes through ``unforced.protocols``."""
