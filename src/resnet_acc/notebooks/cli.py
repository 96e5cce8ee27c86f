"""`resnet-acc notebooks ...`: what notebooks there are, and one of them run with many parameter sets."""

import shlex
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from resnet_acc.notebooks.sweep import DEFAULT_NOTEBOOK, FORMAT, MAX_SETS

notebooks_app = typer.Typer(
    help="Run a notebook with many parameter sets.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)

# Lines as they are shown, at most 76 characters long.
_RUN_HELP = f"""Run a notebook with many parameter sets, and write for each the
executed notebook and an HTML page without the code.

WHAT is a YAML file, or a notebook's name or path (none: {DEFAULT_NOTEBOOK}). The parameters
of all sets are checked before the first one runs: names, types, and what
the notebook's own cell would refuse. A set that fails does not stop the
others. The kernel is the Python of this environment, and its current
folder the notebook's.

A YAML file:

{textwrap.indent(FORMAT, "  ")}
The same without a file: a name that is given again has several values, and
every combination is a set, {MAX_SETS} at most. -p goes before what a file says.

  resnet-acc notebooks run 01 -p preset=quick -p batch_size=8 -p batch_size=16

The text behind = becomes what the notebook declares: a number, True or
False, None, or a text. Relative paths among the values hang on the
repository's root, as in the notebook.

On a CPU the sets run one after another; --jobs 2 runs two at once, which
share its cores, so that rates fall. On several GPUs as many run at once as
fit: each set gets as many GPUs as it asks for processes (all of them where
it does not say), by CUDA_VISIBLE_DEVICES, and --jobs is the most at once.

The batch makes a folder of its own below --to:

  index.html                  status, parameters, links and result of each set
  batch.json                  the same for programs
  NN_name.ipynb .html .png    executed notebook, page, last figure

Exit status: 0 all sets ok; 1 some failed; 2 refused, and nothing was run;
130 or 143 ended by Ctrl-C or SIGTERM, with what was done kept and listed.
"""


@notebooks_app.command("run", help=_RUN_HELP)
def run(
    what: Annotated[str | None, typer.Argument(metavar="[WHAT]", show_default=False)] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="a parameter; can be repeated")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="where the batch makes its folder (none: output/notebooks)")
    ] = None,
    jobs: Annotated[str | None, typer.Option(metavar="INT", help="sets at once, at most (none: see above)")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="how long a set may take (none: no limit)")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check, print the sets, and run nothing")] = False,
) -> None:
    from resnet_acc import launch_single_task

    def start() -> int:
        from resnet_acc.notebooks.run import run_command_line

        command = shlex.join(["resnet-acc", *sys.argv[1:]])
        return run_command_line(what, parameter or [], to, jobs, timeout, dry_run=dry_run, command=command)

    launch_single_task.exit_quietly(launch_single_task.run_command(start))


@notebooks_app.command("list")
def list_all() -> None:
    """List the tutorial's notebooks: name, title, and parameters with their values and what they mean."""
    from resnet_acc import launch_single_task

    def show() -> int:
        from resnet_acc.notebooks.run import describe_notebooks

        for line in describe_notebooks():
            print(line)
        return 0

    launch_single_task.exit_quietly(launch_single_task.run_command(show))
