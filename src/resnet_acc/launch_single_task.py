"""Start one run, as in the article:

python -m resnet_acc.launch_single_task --nproc_per_node=8 --amp_level=O1 --compiler-opt --batch_size=128
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from resnet_acc.launch import preflight
from resnet_acc.launch.options import OptionError, build_parser, parse
from resnet_acc.launch.supervisor import RunFailed, RunInterrupted, launch

REFUSED = 2
"""Exit status of a run that was not started; a failed one has 1, and an interrupted one 128 and the signal's number."""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m resnet_acc.launch_single_task") -> int:
    """Read the command line, run, and return the exit status."""
    parser = build_parser(prog, "Train a ResNet by one arm on this machine's devices, and leave the run's records.")
    return run_command(lambda: _start(parser, sys.argv[1:] if arguments is None else arguments))


def _start(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    options = parse(parser, arguments)
    if options.extra.get("print_config"):
        print(json.dumps(preflight.resolve(options.config).to_json(), indent=2))
        return 0
    launch(options.config, echo=say)
    return 0


def say(line: str) -> None:
    """Print a line at once: a notebook or a log wants to see it now."""
    print(line, flush=True)


def run_command(command: Callable[[], int]) -> int:
    """Run a command and turn what goes wrong into one last line on stderr and an exit status."""
    try:
        with _signals_as_interrupts():
            status = command()
    except (OptionError, ValueError) as error:
        return _end(REFUSED, f"error: {error}")
    except RunFailed as error:
        where = f"; see {error.run_dir}" if error.run_dir else ""
        return _end(1, f"error: {error}{where}")
    except RunInterrupted as error:
        where = f": {error.run_dir}" if error.run_dir else ", before anything was started"
        return _end(128 + error.signal_number, f"{error}{where}")
    except KeyboardInterrupt:
        return _end(128 + signal.SIGINT, "interrupted by SIGINT, before anything was started")
    except OSError as error:
        return _end(1, f"error: {error}")
    return status


def _end(status: int, line: str) -> int:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        print(" ".join(line.split()), file=sys.stderr, flush=True)
    return status


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Before a run and between two, SIGTERM and SIGHUP end this process as Ctrl-C does.

    SIGINT is taken even where a shell started this in the background with it ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise RunInterrupted(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def exit_quietly(status: int) -> None:
    """End this process; a reader of its output that has gone away is no error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)


if __name__ == "__main__":
    exit_quietly(main())
