"""Which rank failed first, and why: from torchrun's report, the ranks' error files and what they printed."""

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from resnet_acc.launch.folder import RunFolder
from resnet_acc.launch.progress import read_end

MAX_LINES = 20
MAX_LINE_LENGTH = 500

_BLOCK = re.compile(
    r"^\[\d+\]:\n  time +: (?P<time>.*)\n  host +: .*\n  rank +: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r"  exitcode +: (?P<exitcode>-?\d+) .*\n  error_file *: .*\n(?:  traceback +: (?P<traceback>.*))?",
    re.MULTILINE,
)
_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Timeout)\b")
# What a rank says when another one went away: a consequence, never the cause.
_CONSEQUENCE = re.compile(
    r"closed by peer|reset by peer|broken pipe|DistBackendError|DistNetworkError|DistStoreError|ncclRemoteError|"
    r"ncclSystemError|remote process exited|recvValue|sendBytes|gloo/transport|waiting for (a|clients)|Socket Timeout",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RankFailure:
    """One rank's failure as torchrun reports it."""

    rank: int
    exit_code: int
    time: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a run failed: the first failing rank where it is one, a sentence, and the rank's last lines."""

    rank: int | None
    reason: str
    last_lines: list[str] = field(default_factory=list)


def parse_report(text: str) -> list[RankFailure]:
    """Failed ranks from the text that torchrun prints at its end, the one that it calls the root cause first."""
    first = text.rfind("Root Cause (first observed failure):")
    found = {
        int(block["rank"]): (
            0 if first >= 0 and block.start() > first else 1,
            RankFailure(int(block["rank"]), int(block["exitcode"]), block["time"].strip(), block["traceback"] or ""),
        )
        for block in _BLOCK.finditer(text)
    }
    return [failure for _, failure in sorted(found.values(), key=lambda item: (item[0], item[1].time))]


def find_failure(run: RunFolder, gone_at: Mapping[int, float], agent_exit_code: int | None) -> Failure | None:
    """The cause of a run's failure, or None where every rank of this machine got to its end.

    Args:
        run: the run's folder.
        gone_at: when a rank was first seen to be gone, in seconds of any one clock, for those that were.
        agent_exit_code: torchrun's, or None where it had to be stopped.
    """
    unfinished = [rank for rank in run.ranks if read_end(run.path, rank) is None]
    if agent_exit_code == 0 and not unfinished:
        return None
    reported = parse_report(read_tail(run.path / "launcher.log", 200_000))
    described = [(failure, _error_of(run, failure)) for failure in reported]
    causes = [item for item in described if not _is_consequence(*item)]
    if causes:
        return _describe(run, *causes[0])
    known = {failure.rank for failure in reported}
    silent = sorted((rank for rank in unfinished if rank in gone_at and rank not in known), key=gone_at.__getitem__)
    if silent and (described or agent_exit_code is None or agent_exit_code == 0):
        rank = silent[0]
        return Failure(rank, f"rank {rank} ended before its training did, without an error", last_lines(run, rank))
    if described:
        return _describe(run, *described[0])
    return _without_report(run, unfinished, agent_exit_code)


def _without_report(run: RunFolder, unfinished: list[int], agent_exit_code: int | None) -> Failure:
    lines = clean_lines(read_tail(run.path / "launcher.log", 20_000))
    if agent_exit_code == 0 and unfinished:
        rank = unfinished[0]
        return Failure(rank, f"rank {rank} ended before its training did, without an error", last_lines(run, rank))
    if agent_exit_code is not None and agent_exit_code < 0:
        return Failure(None, f"torchrun was killed by {signal_name(-agent_exit_code)}", lines)
    said = f": {lines[-1]}" if lines else ""
    return Failure(None, f"torchrun ended with exit status {agent_exit_code}{said}", lines)


def _describe(run: RunFolder, failure: RankFailure, error: str) -> Failure:
    rank = failure.rank
    if failure.exit_code < 0:
        name = signal_name(-failure.exit_code)
        hint = " (often: the machine ran out of memory)" if name == "SIGKILL" else ""
        return Failure(rank, f"rank {rank} was killed by {name}{hint}", last_lines(run, rank))
    named = error and not error.startswith("SystemExit")
    said = error if named else f"exit status {failure.exit_code}, and no error was written"
    return Failure(rank, f"rank {rank} failed: {said}", last_lines(run, rank))


def _is_consequence(failure: RankFailure, error: str) -> bool:
    told_to_end = failure.exit_code == -signal.SIGTERM
    return told_to_end or (failure.exit_code >= 0 and bool(_CONSEQUENCE.search(error)))


def _error_of(run: RunFolder, failure: RankFailure) -> str:
    """A rank's own error in one line: from its error file, else from the last line of its traceback."""
    path = run.elastic(failure.rank, "error.json")
    if path is not None:
        try:
            message = json.loads(path.read_text(encoding="utf-8", errors="replace"))["message"]
            text = str(message["message"] if isinstance(message, dict) else message)
            if lines := clean_lines(text):
                return lines[0]
        except (OSError, ValueError, KeyError, TypeError):
            pass
    for source in (_stderr(run, failure.rank), run.path / str(failure.rank) / "log"):
        lines = clean_lines(read_tail(source, 50_000)) if source else []
        if any(line.startswith("Traceback ") for line in lines):
            errors = [line for line in lines if _ERROR_LINE.match(line)]
            return errors[-1] if errors else lines[-1]
    return ""


def last_lines(run: RunFolder, rank: int) -> list[str]:
    """What a rank wrote last: its error output where that ends in a traceback, else its log, else whatever there is."""
    stderr = clean_lines(read_tail(_stderr(run, rank), 50_000))
    log = clean_lines(read_tail(run.path / str(rank) / "log", 50_000))
    if any("Traceback" in line for line in stderr) or not log:
        return (stderr or clean_lines(read_tail(run.path / "launcher.log", 20_000)))[-MAX_LINES:]
    return log[-MAX_LINES:]


def _stderr(run: RunFolder, rank: int) -> Path | None:
    return run.elastic(rank, "stderr.log")


def read_tail(path: Path | None, num_bytes: int) -> str:
    """The end of a file as text; nothing where it cannot be read."""
    if path is None:
        return ""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - num_bytes))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def clean_lines(text: str) -> list[str]:
    """Lines for a screen: no empty ones, no control characters, none longer than MAX_LINE_LENGTH."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = ("".join(char for char in line if char == "\t" or char.isprintable()) for line in plain.splitlines())
    return [line.rstrip()[:MAX_LINE_LENGTH] for line in lines if line.strip()]


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
