"""What `resnet-acc notebooks run` and `list` do, from their options to their exit status."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from resnet_acc.launch import preflight
from resnet_acc.launch_single_task import say
from resnet_acc.notebooks.batch import default_folder, run_batch
from resnet_acc.notebooks.checks import check_types, check_values
from resnet_acc.notebooks.devices import visible_gpus
from resnet_acc.notebooks.found import Notebook, list_notebooks, notebooks_folder
from resnet_acc.notebooks.sweep import read_sweep


def run_command_line(
    what: str | None,
    options: Sequence[str],
    to: Path | None,
    jobs: str | None,
    timeout: str | None,
    *,
    dry_run: bool,
    command: str,
) -> int:
    """Read, check and run a batch; the exit status.

    Raises:
        ValueError: something is refused, and nothing was run.
        RunInterrupted: a signal ended the batch.
    """
    num_jobs, seconds = _positive("jobs", jobs), _positive("timeout", timeout)
    if num_jobs is not None and num_jobs != int(num_jobs):
        raise ValueError(f"jobs is {jobs!r}; give a whole number from 1 on")
    sweep = read_sweep(what, options)
    sweep = check_types(sweep, say)
    environment = preflight.probe(quick=sweep.notebook.check_cell is None)
    check_values(sweep, environment, say)
    say(f"{sweep.notebook.path}: {len(sweep.sets)} parameter set{'s' if len(sweep.sets) > 1 else ''}")
    if dry_run:
        for one, stem in zip(sweep.sets, sweep.stems, strict=True):
            say(f"{stem}: {one.name}: {', '.join(f'{name}={value!r}' for name, value in one.parameters.items())}")
        return 0
    outcome = run_batch(
        sweep,
        Path(to).expanduser().absolute() if to is not None else default_folder(),
        gpus=visible_gpus(environment),
        jobs=None if num_jobs is None else int(num_jobs),
        timeout_s=seconds,
        echo=say,
        command=command,
    )
    return outcome.exit_status


def _positive(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9 or (name == "jobs" and value < 1):
        raise ValueError(f"{name} is {text!r}; give a number above 0")
    return value


def describe_notebooks() -> Iterator[str]:
    """Lines for each notebook: its name and title, and a line for each parameter.

    Raises:
        ValueError: there are none.
    """
    paths = list_notebooks()
    if not paths:
        raise ValueError(f"no notebooks in {notebooks_folder()}; run this from the repository, or give run a path")
    for path in paths:
        try:
            notebook = Notebook.read(path)
            yield f"{notebook.name}: {notebook.title}"
            for one in notebook.parameters:
                comment = f"  # {one.comment}" if one.comment else ""
                yield f"    {one.name} = {one.default!r}{comment}"
        except (ValueError, OSError) as error:
            yield f"{path.stem}: cannot be read: {error}"
