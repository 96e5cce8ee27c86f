"""What the notebooks after the first call: one module for each, and how they run a script of the training side."""
