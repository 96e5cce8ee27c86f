"""Which runs a command line means: runs' folders, ids, comparisons, output folders or a part of one, and patterns."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.launch.live_find import find_run, output_folder
from resnet_acc.results.attempts import rank_folders
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import load_run
from resnet_acc.results.status import RunStatus, read_json

COMPARISON = "comparison.json"
_DEPTH = 4
"""How far below an output folder a run lies: <model>/<tag>/<suffix>/<run_id>."""
_NO_MODELS = ("comparisons", "figures", "notebooks", "reports")


@dataclass(frozen=True)
class LeftOut:
    """Something that was asked for and is no run: its name (or arm), and why."""

    label: str
    reason: str
    status: str = "left out"


@dataclass(frozen=True)
class Comparison:
    """A comparison read back: its runs in their order, those without a folder too, and the arms it skipped."""

    folder: Path
    title: str
    command: str
    runs: list[Run]
    skipped: list[LeftOut]


@dataclass
class Selection:
    """What was found, each run once: `folders` are those of runs that are given other than by a comparison."""

    folders: list[Path] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def all_runs(self) -> list[Run]:
        """Every run, loaded: the comparisons' own, then the others; one that is in both stands once."""
        runs = [run for comparison in self.comparisons for run in comparison.runs]
        seen = {os.path.realpath(run.run_dir) for run in runs if run.run_dir is not None}
        return runs + [load_run(folder) for folder in self.folders if os.path.realpath(folder) not in seen]

    def all_left_out(self) -> list[LeftOut]:
        """What is left out, the comparisons' skipped arms too."""
        return self.left_out + [entry for comparison in self.comparisons for entry in comparison.skipped]


def select(given: Sequence[str], output: str | Path = "output") -> Selection:
    """Find the runs that the words of a command line mean.

    Args:
        given: each a folder (a run's, a comparison's, an output folder or one within it), a run's or a comparison's id
            or how a run's id begins, or a pattern such as "output/*/*/eager_x*"; none means `output`.
        output: folder below which ids are looked for; a relative one hangs on the repository's root.

    Raises:
        ValueError: one of them means nothing, or no run was found at all.
    """
    found = Selection()
    for text in given or [str(output_folder(output))]:
        if Path(text).exists() or not any(sign in text for sign in "*?["):
            _take(found, _folder_of(text, output), alone=True)
            continue
        matches = sorted(glob.glob(os.path.expanduser(text), recursive=True))
        if not matches:
            raise ValueError(f"nothing fits {text!r}; give a folder, an id, or another pattern")
        for match in matches:
            _take(found, Path(match), alone=False)
    unique = {os.path.realpath(folder): folder for folder in reversed(found.folders)}
    found.folders = [unique[place] for place in dict.fromkeys(map(os.path.realpath, found.folders))]
    if not found.folders and not found.comparisons:
        first = found.left_out[0] if found.left_out else None
        raise ValueError(f"{' '.join(given)} holds no runs{f' ({first.label}: {first.reason})' if first else ''}")
    return found


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's, finished or not."""
    names = ("config.json", "status.json")
    return any((folder / name).is_file() for name in names) or bool(rank_folders(folder))


def read_comparison(folder: Path) -> Comparison:
    """Read a comparison's folder.

    Raises:
        FileNotFoundError: there is no comparison.json.
        ValueError: comparison.json is none.
    """
    path = folder / COMPARISON
    if not path.is_file():
        raise FileNotFoundError(f"no comparison at {folder}; give a folder that holds comparison.json")
    values = read_json(path)
    if values is None or not isinstance(values.get("runs"), list):
        raise ValueError(f"{path} holds no comparison; make it again with resnet-acc compare")
    output = folder.absolute().parent.parent
    runs: list[Run] = []
    for entry in values["runs"]:
        run_dir = output / str(entry.get("run_dir")) if isinstance(entry, dict) else None
        if run_dir is not None and entry.get("run_dir") and run_dir.is_dir():
            runs.append(load_run(run_dir))
        elif isinstance(entry, dict):
            runs.append(_lost(entry))
    skipped = []
    for entry in values.get("skipped") or []:
        if isinstance(entry, dict):
            label = f"{entry.get('arm')}, {entry.get('nproc')} process{'es' if entry.get('nproc') != 1 else ''}"
            skipped.append(LeftOut(label, str(entry.get("reason")), "skipped"))
    title = f"Comparison {values.get('id') or folder.name}"
    return Comparison(folder, title, str(values.get("command") or ""), runs, skipped)


def _lost(entry: dict[str, Any]) -> Run:
    """A run that the comparison names and that has no folder (any more)."""
    nproc = entry.get("nproc")
    status = str(entry.get("status") or "failed")
    reason = "its folder is missing" if entry.get("run_dir") else "it left no folder"
    return Run(
        run_id=Path(str(entry.get("run_dir") or "")).name,
        arm=str(entry.get("arm") or ""),
        world_size=nproc if isinstance(nproc, int) else None,
        status=RunStatus(
            status="failed" if status == "finished" else status, reason=str(entry.get("reason") or reason)
        ),
    )


def _folder_of(text: str, output: str | Path) -> Path:
    path = Path(text).expanduser()
    if "\0" in text or not text.strip():
        raise ValueError(f"{text!r} is no folder; give a run's folder or id, or an output folder")
    if path.is_dir():
        return path
    if path.exists():
        mend = path.parent if path.name not in ("log", "metrics.jsonl") else path.parent.parent
        raise ValueError(f"{text} is a file; give the folder {mend}")
    comparison = output_folder(output) / "comparisons" / text
    if "/" not in text and (comparison / COMPARISON).is_file():
        return comparison
    if "/" in text:
        raise ValueError(f"no folder {text}; give a run's folder or id, a comparison's, or an output folder")
    return find_run(text, output)


def _take(found: Selection, path: Path, *, alone: bool) -> None:
    """Add what lies at a path; where it was given alone and holds nothing, that is an error.

    Raises:
        ValueError: see above.
    """
    if not path.is_dir():
        found.left_out.append(LeftOut(str(path), "it is a file, and no run's folder"))
        return
    if (path / COMPARISON).is_file():
        if all(path.resolve() != each.folder.resolve() for each in found.comparisons):
            found.comparisons.append(read_comparison(path))
        return
    if is_run(path):
        found.folders.append(path.absolute())
        return
    if path.name == "comparisons":
        for entry in sorted(path.glob(f"*/{COMPARISON}")):
            _take(found, entry.parent, alone=False)
        return
    below = list(_below(path, found.left_out))
    found.folders += below
    if not below and alone:
        raise ValueError(f"{path} holds no runs; start one with: resnet-acc launch")
    if not below:
        found.left_out.append(LeftOut(str(path), "it holds no run"))


def _below(folder: Path, left_out: list[LeftOut], depth: int = 1) -> Iterator[Path]:
    """Folders of runs below one, by name; links last, so that a link never stands for the folder that it points to."""
    try:
        entries = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        left_out.append(LeftOut(str(folder), f"it cannot be read ({error.strerror or error})"))
        return
    for entry in sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name)):
        if is_run(entry):
            yield entry.absolute()
        elif depth < _DEPTH and not (depth == 1 and entry.name in _NO_MODELS):
            yield from _below(entry, left_out, depth + 1)
        elif depth == _DEPTH:
            left_out.append(LeftOut(str(entry), "it holds no config.json, no status and no rank's records"))
