"""Starts a launcher and ends at once, so that the launcher is nobody's child:
python -m resnet_acc.launch.live_detach LOCK SCREEN ARGUMENT...

LOCK is an open file that the launcher holds on to until it ends; who it is gets written into it.
"""

import json
import os
import subprocess
import sys

import psutil


def main() -> None:
    """Start the launcher with its output in a file of its own, and note down which process it is."""
    lock, screen, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    os.ftruncate(lock, 0)
    with open(screen, "xb") as stream:
        launcher = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )
    created = psutil.Process(launcher.pid).create_time()
    job = {"pid": launcher.pid, "create_time": created, "screen": screen, "arguments": arguments}
    os.pwrite(lock, json.dumps(job).encode(), 0)


if __name__ == "__main__":
    main()
