"""Reports, tables and figures of runs."""
