"""Starts, watches and stops runs. Nothing here imports torch: what an environment can do is asked of a subprocess."""
