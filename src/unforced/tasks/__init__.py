"""Data sets as tasks: readers, codecs and the metrics their papers report. One file a task."""
