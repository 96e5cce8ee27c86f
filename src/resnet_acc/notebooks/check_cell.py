"""Runs a notebook's checking cell for many parameter sets, without a kernel: python -m resnet_acc.notebooks.check_cell

stdin holds one JSON object: parameters_cell, check_cell, sets, environment, and answer, the file that gets a list with
one text or null for each set.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resnet_acc.files import write_json
from resnet_acc.launch import preflight
from resnet_acc.launch.parameters import MARK


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    # The cell asks what this machine can do; that was asked once for all sets, and importing torch takes seconds.
    preflight.probe = lambda *_, **__: request["environment"]
    cells = request["parameters_cell"], request["check_cell"]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        answers = [refusal(*cells, values) for values in request["sets"]]
    write_json(Path(request["answer"]), answers)
    os._exit(0)  # a thread that a cell left does not keep this process


def refusal(parameters_cell: str, check_cell: str, values: Mapping[str, Any]) -> str | None:
    """What the checking cell raises as a user's mistake (ValueError) with these values, or None.

    Another error may come of running outside a notebook, and proves nothing.
    """
    injected = "\n".join([MARK, *(f"{name} = {value!r}" for name, value in values.items())])
    namespace: dict[str, Any] = {"__name__": "__main__", "In": ["", parameters_cell, injected]}
    try:
        for cell in (parameters_cell, injected, check_cell):
            exec(compile(cell, "<notebook>", "exec"), namespace)
    except ValueError as error:
        return " ".join(str(error).split())
    except BaseException:
        return None
    return None


if __name__ == "__main__":
    main()
