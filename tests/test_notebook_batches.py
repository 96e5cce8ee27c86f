"""Batches of notebooks as they run: one bad set never stops the others, and nothing of a batch is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from launch_tools import alive, run_folders, wait_for
from test_notebook_sweeps import write_notebook
from test_notebooks import TINY

from resnet_acc.notebooks import leftovers
from resnet_acc.notebooks.batch import run_batch
from resnet_acc.notebooks.checks import check_types
from resnet_acc.notebooks.sweep import read_sweep

PARAMETERS = """# Parameters
mode = "good"  # what this set does
folder = "."  # where it leaves its process numbers
processes = 1  # GPUs it asks for
"""

ACTS = """# SECRET SOURCE
import os, pathlib, signal, subprocess, sys, time
from IPython.display import Markdown, display
here = pathlib.Path(folder)
display(Markdown(f"mode **{mode}**"))
"""

BREAKS = """
if mode == "raise":
    raise RuntimeError("it <b>failed</b>")
if mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "big":
    print("0123456789" * 700_000)
if mode == "leave":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (here / "left").write_text(str(child.pid))
"""

WAITS = """
if mode == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (here / f"pid-{os.getpid()}").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
if mode == "meet":
    (here / f"met-{os.getpid()}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    until = time.monotonic() + 60
    while len(list(here.glob("met-*"))) < 2:
        assert time.monotonic() < until, "alone"
        time.sleep(0.05)
"""

FIGURE = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()
"""


class Targets(HTMLParser):
    """The tags of a page, and whatever they load."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster") or (name == "href" and tag != "a"):
                self.loaded.append(value or "")
            elif name == "href":
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclass
class Batch:
    """A batch that has ended."""

    folder: Path
    status: int
    output: str

    @property
    def sets(self) -> dict[str, dict[str, Any]]:
        whole = json.loads((self.folder / "batch.json").read_text(encoding="utf-8"))
        return {one["name"]: one for one in whole["sets"]}


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "resnet_acc", "notebooks", "run", *map(str, arguments)]


def start(folder: Path, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command_line(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: "subprocess.Popen[str]") -> Batch:
    output, _ = process.communicate(timeout=300)
    found = re.search(r"^batch folder: (.+)$", output, re.MULTILINE)
    assert found, output
    return Batch(Path(found[1]), process.returncode, output)


def acting_notebook(folder: Path) -> Path:
    return write_notebook(folder / "acts.ipynb", ACTS, BREAKS, WAITS, FIGURE, parameters=PARAMETERS)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """Good sets and bad ones from one YAML file, two at once."""
    folder = tmp_path_factory.mktemp("mixed & <odd>")
    acting_notebook(folder)
    modes = ("raise", "good", "kill", "big", "leave")
    sets = "".join(f"  - {{name: the {mode} one, parameters: {{mode: {mode}}}}}\n" for mode in modes)
    (folder / "sweep.yaml").write_text(
        f"notebook: acts.ipynb\nparameters: {{folder: {json.dumps(str(folder))}}}\nsets:\n{sets}", encoding="utf-8"
    )
    return finish(start(folder, "sweep.yaml", "--to", folder / "to", "--jobs", "2"))


def test_a_set_that_fails_stops_no_other(mixed: Batch) -> None:
    assert mixed.status == 1
    assert mixed.output.strip().splitlines()[-1] == "3 ok, 2 failed"
    statuses = {name: one["status"] for name, one in mixed.sets.items()}
    assert statuses == {
        "the raise one": "failed",
        "the good one": "ok",
        "the kill one": "failed",
        "the big one": "ok",
        "the leave one": "ok",
    }
    assert mixed.sets["the raise one"]["error"] == "RuntimeError: it <b>failed</b>"
    assert "died" in mixed.sets["the kill one"]["error"]
    assert mixed.sets["the good one"]["error"] == ""


def test_every_set_leaves_its_notebook_and_its_page(mixed: Batch) -> None:
    for one in mixed.sets.values():
        executed = nbformat.read(mixed.folder / one["executed"], as_version=4)
        nbformat.validate(executed)
        assert any(cell.get("outputs") for cell in executed.cells)
        path = mixed.folder / one["page"]
        page = Targets(path)
        assert path.stat().st_size < 3_000_000
        assert "SECRET SOURCE" not in path.read_text(encoding="utf-8")
        assert all(source.startswith("data:image/") for source in page.loaded)
        assert not {"script", "iframe", "link", "object", "embed"} & page.tags
        assert f"mode {one['parameters']['mode']}" in page.text
    assert (mixed.folder / mixed.sets["the good one"]["figure"]).read_bytes().startswith(b"\x89PNG")
    good = Targets(mixed.folder / mixed.sets["the good one"]["page"])
    assert len(good.loaded) == 1
    assert "Status: ok" in " ".join(good.text.split())


def test_what_a_page_cannot_hold_is_named_in_it(mixed: Batch) -> None:
    big = Targets(mixed.folder / mixed.sets["the big one"]["page"]).text
    assert "Left out, so that this page stays small" in big
    assert re.search(r"cell 4: [\d,]+ of 7,000,001 characters of text", big)
    raised = Targets(mixed.folder / mixed.sets["the raise one"]["page"])
    assert "RuntimeError: it <b>failed</b>" in raised.text
    assert "Status: failed" in " ".join(raised.text.split())


def test_the_index_lists_every_set_with_links_that_lead_somewhere(mixed: Batch) -> None:
    index = Targets(mixed.folder / "index.html")
    assert "3 ok, 2 failed" in index.text
    assert "RuntimeError: it <b>failed</b> (cell 4)" in index.text
    assert {source for source in index.loaded if not (mixed.folder / source).is_file()} == set()
    for one in mixed.sets.values():
        assert one["name"] in index.text
        assert {one["page"], one["executed"]} <= set(index.links)
        assert (mixed.folder / one["page"]).is_file()


def test_what_a_set_leaves_running_is_ended(mixed: Batch) -> None:
    (left,) = mixed.folder.parents[1].glob("left")
    assert alive([int(left.read_text())]) == []
    assert mixed.sets["the leave one"]["notes"] == ["1 processes that it left running were ended"]
    assert leftovers.processes_of([f"{mixed.folder.name}/{number}" for number in range(1, 6)]) == []


def hanging_pids(folder: Path) -> list[int]:
    (path,) = wait_for(lambda: [path for path in folder.glob("pid-*") if path.read_text()], 120)
    return [int(number) for number in path.read_text().split()]


def test_interrupting_one_of_two_batches_ends_all_of_it_and_nothing_of_the_other(tmp_path: Path) -> None:
    acting_notebook(tmp_path)
    common = ("acts.ipynb", "-p", f"folder={tmp_path}", "--to", tmp_path / "to")
    stopped = start(tmp_path, *common, "-p", "mode=hang", "-p", "mode=good")
    other = start(tmp_path, *common, "-p", "mode=leave")
    pids = hanging_pids(tmp_path)
    workers = [child.pid for child in psutil.Process(stopped.pid).children(recursive=True)]
    assert set(pids) <= set(workers)
    stopped.send_signal(signal.SIGINT)
    ended, whole = finish(stopped), finish(other)
    assert alive([*pids, *workers]) == []
    assert ended.status == 130
    assert [one["status"] for one in ended.sets.values()] == ["stopped", "not run"]
    assert "0 ok, 0 failed, 1 stopped (mode=hang), 1 not run (mode=good)" in ended.output
    executed = nbformat.read(ended.folder / ended.sets["mode=hang"]["executed"], as_version=4)
    assert [cell.metadata.papermill.status for cell in executed.cells][-1] == "pending"
    assert "Status: stopped" in " ".join(Targets(ended.folder / ended.sets["mode=hang"]["page"]).text.split())
    assert whole.folder != ended.folder
    assert (whole.status, whole.output.strip().splitlines()[-1]) == (0, "1 ok, 0 failed")


def test_a_killed_batch_leaves_no_process(tmp_path: Path) -> None:
    acting_notebook(tmp_path)
    batch = start(tmp_path, "acts.ipynb", "-p", f"folder={tmp_path}", "-p", "mode=hang", "--to", tmp_path / "to")
    pids = hanging_pids(tmp_path)
    batch.kill()
    batch.wait()
    (folder,) = (tmp_path / "to").iterdir()
    wait_for(lambda: not leftovers.processes_of([f"{folder.name}/1"]), 60)
    assert alive(pids) == []


def test_sets_run_at_once_where_gpus_allow_each_on_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acting_notebook(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "notebook: acts.ipynb\nsets:\n- {name: a, parameters: {mode: meet}}\n- {name: b, parameters: {mode: meet}}\n"
        f"- {{name: both, parameters: {{processes: 2}}}}\nparameters: {{folder: {json.dumps(str(tmp_path))}}}\n"
    )
    sweep = check_types(read_sweep(str(tmp_path / "s.yaml"), []), print)
    outcome = run_batch(sweep, tmp_path / "to", gpus=["4", "5"])
    assert [(state.status, state.gpus) for state in outcome.states] == [
        ("ok", ["4"]),
        ("ok", ["5"]),
        ("ok", ["4", "5"]),
    ]
    assert {path.read_text() for path in tmp_path.glob("met-*")} == {"4", "5"}
    assert outcome.exit_status == 0
    assert capsys.readouterr().out.strip().splitlines()[-1] == "3 ok, 0 failed"


def test_a_set_that_takes_too_long_fails_and_is_ended(tmp_path: Path) -> None:
    acting_notebook(tmp_path)
    sweep = check_types(read_sweep(str(tmp_path / "acts.ipynb"), ["mode=hang", f"folder={tmp_path}"]), print)
    outcome = run_batch(sweep, tmp_path / "to", timeout_s=6.0)
    (state,) = outcome.states
    assert state.status == "failed"
    assert state.error == "Timeout: it took longer than 6 s and was stopped"
    assert alive([int(n) for path in tmp_path.glob("pid-*") for n in path.read_text().split()]) == []


def test_nothing_runs_where_one_set_is_refused(tmp_path: Path) -> None:
    acting_notebook(tmp_path)
    done = subprocess.run(
        command_line("acts.ipynb", "-p", "mode=good", "-p", "processesx=2", "--to", tmp_path / "to"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "did you mean processes?" in done.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "to").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    acting_notebook(tmp_path)
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ValueError, match="give another folder with --to"):
        run_batch(read_sweep(str(tmp_path / "acts.ipynb"), []), tmp_path / "locked" / "to")


def test_the_first_notebook_in_a_batch_links_its_report_and_its_numbers(tmp_path: Path) -> None:
    given = {**TINY, "arms": "eager", "processes": 1, "data": "synthetic", "output": str(tmp_path / "out")}
    options = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    batch = finish(start(tmp_path, "01", *options, "--to", tmp_path / "to"))
    assert batch.status == 0, batch.output
    (one,) = batch.sets.values()
    (run,) = run_folders(tmp_path / "out")
    assert json.loads((run / "status.json").read_text())["status"] == "finished"
    assert json.loads((run / "config.json").read_text())["batch_size"] == TINY["batch_size"]
    assert any("eager x 1: " in line and "images/s" in line for line in one["results"])
    (report,) = one["reports"]
    assert Path(report).is_relative_to(tmp_path / "out")
    page = batch.folder / one["page"]
    assert page.stat().st_size < 3_000_000
    assert all(source.startswith("data:image/") for source in Targets(page).loaded)
    assert Targets(page).loaded
    assert "from resnet_acc" not in Targets(page).text
