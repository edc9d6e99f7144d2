"""The report: one offline HTML page made from run folders alone; nothing here imports torch."""

from unforced.report.page import check_output, write_report, write_tables

__all__ = ["check_output", "write_report", "write_tables"]
