"""The report: one offline HTML page made from run folders alone; nothing here imports torch."""

from unforced.report.page import write_report, write_tables

__all__ = ["write_report", "write_tables"]
