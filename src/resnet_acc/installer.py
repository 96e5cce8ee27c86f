"""`python -m resnet_acc.installer`: bring this environment to what requirements.py finds missing. Used by prepare.sh.

An interrupted install leaves a mark; the next call finds the packages that are only half there and installs them anew.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from resnet_acc.requirements import ROOT, CannotInstall, Plan, canonical, installed_versions, make_plan

TORCH_INDEX_VARIABLE = "RESNET_ACC_TORCH_INDEX"
"""Environment variable with a package index's address, or a folder of wheels, for torch and torchvision alone."""
_CONFLICT = re.compile(
    r"ResolutionImpossible|Cannot install|conflicting dependencies|No matching distribution|too-deep"
)
_UNREACHED = re.compile(r"Retrying \(|\(from versions: none\)|ConnectionError|Temporary failure in name resolution")
"""What pip prints where an index was not reached, or has nothing at all under that name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what is missing, or with --dry-run say what would be; the exit status for a shell."""
    parser = argparse.ArgumentParser(prog="python -m resnet_acc.installer", allow_abbrev=False)
    parser.add_argument("--extra", action="append", default=[], help="extra of pyproject.toml to install too")
    parser.add_argument("--dry-run", action="store_true", help="say what would be installed and change nothing")
    options = parser.parse_args(arguments)
    try:
        if not options.dry_run:
            _remove_half_installed()
        plan = make_plan(options.extra)
        _tell(plan)
        if not options.dry_run and (plan.missing or plan.alone or plan.project):
            _install(plan, options.extra)
    except CannotInstall as error:
        print(f"prepare.sh: error: {error}", file=sys.stderr)
        return 1
    return 0


def _tell(plan: Plan) -> None:
    for note in plan.notes:
        print(f"prepare.sh: {note}")
    wanted = plan.missing + plan.alone + (["resnet_acc (this checkout, editable)"] if plan.project else [])
    print(
        f"prepare.sh: to install: {', '.join(wanted)}" if wanted else "prepare.sh: every package is there", flush=True
    )


def _install(plan: Plan, extras: Sequence[str]) -> None:
    _check_writable()
    before = installed_versions()
    with _mark(before), tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept.txt"
        kept.write_text("\n".join(plan.kept) + "\n", encoding="utf-8")
        missing = _install_from_torch_index(plan.missing)
        if plan.alone:
            _pip_or_stop(["--no-deps", *plan.alone])
        if missing:
            _install_missing(missing, kept, plan)
        if plan.project:
            _pip_or_stop(["--no-deps", "--editable", str(ROOT)])
    importlib.invalidate_caches()
    _check_result(plan, before, extras)


def _install_from_torch_index(missing: list[str]) -> list[str]:
    """Install torch and torchvision from the place that the user names, if any; their dependencies come later.

    Returns:
        What is still to install, torch and torchvision among it for the sake of their dependencies.
    """
    place = os.environ.get(TORCH_INDEX_VARIABLE, "").strip()
    wanted = [line for line in missing if re.match(r"(torch|torchvision)[=<>!~]", line)]
    if not place or not wanted:
        return missing
    folder = Path(place).expanduser()
    is_address = "://" in place
    if not is_address and not folder.is_dir():
        raise CannotInstall(f"{TORCH_INDEX_VARIABLE} is {place!r}, neither a folder of wheels nor an index's address")
    source = ["--index-url", place] if is_address else ["--no-index", "--find-links", str(folder.resolve())]
    _pip_or_stop(
        ["--no-deps", *source, *wanted], f"{TORCH_INDEX_VARIABLE} is {place!r}; it must have {' and '.join(wanted)}"
    )
    return missing


def _install_missing(missing: list[str], kept: Path, plan: Plan) -> None:
    """Install beside what is there: with the pins where they fit, else without, never at a kept package's cost."""
    pins = ROOT / "constraints.txt"
    attempts = [["--constraint", str(kept), "--constraint", str(_free_pins(pins, kept))], ["--constraint", str(kept)]]
    for number, constraints in enumerate(attempts):
        code, errors = _pip([*constraints, *missing])
        if code == 0:
            return
        if _UNREACHED.search(errors) or not _CONFLICT.search(errors):
            break
        if number == 0:
            print("prepare.sh: the pinned versions do not fit beside what is there; trying any that do", flush=True)
    if _UNREACHED.search(errors) or not _CONFLICT.search(errors):
        beside, mend = "", "check the network, then run prepare.sh again: it goes on where it stopped"
    else:
        family = sorted(
            line for line in plan.kept if line.partition("==")[0] in ("torch", "torchvision", "torch-xla", "torchacc")
        )
        beside, mend = f" beside {', '.join(family)}" if family else "", "use another environment"
    raise CannotInstall(
        f"pip could not install {', '.join(missing)}{beside} into {sys.prefix} (see its lines above); {mend}"
    )


def _free_pins(pins: Path, kept: Path) -> Path:
    """The pins without those that speak of a package which is there already."""
    there = {canonical(line.partition("==")[0]) for line in kept.read_text(encoding="utf-8").split()}
    lines = pins.read_text(encoding="utf-8").splitlines()
    free = kept.with_name("pins.txt")
    free.write_text("\n".join(line for line in lines if canonical(line.partition("==")[0]) not in there) + "\n")
    return free


def _pip_or_stop(arguments: list[str], mend: str = "run prepare.sh again to go on where it stopped") -> None:
    code, _ = _pip(arguments)
    if code:
        raise CannotInstall(f"pip could not install {arguments[-1]} into {sys.prefix} (see its lines above); {mend}")


def _pip(arguments: list[str]) -> tuple[int, str]:
    """Run pip install; its errors are shown and returned."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=_pip_environment(), errors="replace")
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        sys.stderr.write(line)
        lines.append(line)
    return process.wait(), "".join(lines)


def _pip_environment() -> dict[str, str]:
    """Without this checkout's src/, which prepare.sh put on the path: pip would take it for an installed package."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_USER", "PIP_TARGET")}
    path = [
        entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and Path(entry) != ROOT / "src"
    ]
    return environment | {"PYTHONPATH": os.pathsep.join(path)}


def _check_result(plan: Plan, before: dict[str, str], extras: Sequence[str]) -> None:
    """Look again: nothing is missing now, and what was to be kept is as it was."""
    after = installed_versions()
    changed = [
        line
        for line in plan.kept
        if (name := line.partition("==")[0]) in _named_in(plan) and after.get(name) != before[name]
    ]
    if changed:
        raise CannotInstall(f"{changed[0]} was changed by pip; install it again from where it came")
    rest = make_plan(extras)
    if rest.missing or rest.alone or rest.project:
        raise CannotInstall(f"still missing after the install: {', '.join(rest.missing + rest.alone) or 'resnet_acc'}")


def _named_in(plan: Plan) -> set[str]:
    return {note.split()[0] for note in plan.notes if note.endswith("is kept")}


def _purelib() -> Path:
    return Path(sysconfig.get_paths()["purelib"])


def _check_writable() -> None:
    if not os.access(_purelib(), os.W_OK):
        raise CannotInstall(
            f"{_purelib()} cannot be written; use an environment of your own, or none, and .venv is made"
        )


def _mark_path() -> Path:
    return _purelib() / ".resnet_acc-installing.json"


@contextlib.contextmanager
def _mark(before: dict[str, str]) -> Iterator[None]:
    """Leave a mark while pip works: what was there before it began. An older mark stays, for it knows more."""
    path = _mark_path()
    if not path.exists():
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(sorted(before)), encoding="utf-8")
        temporary.replace(path)
    try:
        yield
    except CannotInstall:
        if installed_versions() == before:
            path.unlink(missing_ok=True)  # pip gave up before it changed anything
        raise
    path.unlink(missing_ok=True)


def _remove_half_installed() -> None:
    """After an interrupted install, take away the records of packages that pip had not finished; it then begins anew.

    pip writes INSTALLER and then RECORD last: a package without them is not whole. What was there before is kept.
    """
    if not _mark_path().exists():
        return
    print("prepare.sh: the last install was interrupted; completing it", flush=True)
    before = set(json.loads(_mark_path().read_text(encoding="utf-8")))
    for dist in importlib.metadata.distributions(path=[str(_purelib()), sysconfig.get_paths()["platlib"]]):
        name = canonical(dist.metadata["Name"] or "")
        record = dist.read_text("RECORD") or ""
        folder = getattr(dist, "_path", None)  # the dist-info folder; there is no public name for it
        whole = dist.read_text("INSTALLER") is not None and "/INSTALLER," in record
        if isinstance(folder, Path) and name not in before and not whole and folder.name.endswith(".dist-info"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
