"""Processes that work on images: started fresh, and never outliving who started them."""

import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def make_pool(workers: int) -> ProcessPoolExecutor:
    """A pool of so many processes.

    Spawned, not forked: the caller may be a notebook's kernel with threads and a device in use.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(),))


def _start_worker(parent: int) -> None:
    """End with the parent, however that ends, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above
