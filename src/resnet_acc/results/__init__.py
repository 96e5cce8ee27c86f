"""Runs read back and compared: records, tidy tables, statistics, figures, report and verdict. Imports no torch."""
