"""Notebooks in batches: papermill over many parameter sets, HTML pages without the code, and one index."""
