"""The panel: runs chosen, started, watched, stopped and compared from a notebook, with widgets or without.

panel = Panel({"preset": "quick", "arms": "eager", "processes": 1})
panel.show()                # widgets, or a table and a picture where no front end is there to draw them
panel.start(wait=True)      # what the Start button does, without a button
attach("20261201-1153")     # a run that goes on, shown in any cell of any kernel
"""

from resnet_acc.panel.board import Panel, attach

__all__ = ["Panel", "attach"]
