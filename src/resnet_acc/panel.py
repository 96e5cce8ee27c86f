"""The panel of notebook 03: start, watch, compare and stop runs with ipywidgets."""
