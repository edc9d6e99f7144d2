"""The report: one offline HTML page made from run folders alone; nothing here imports torch."""

from unforced.report.page import write_report

__all__ = ["write_report"]
