"""Notebook 03 by papermill, where nobody presses a button: its cells start, wait, attach, list, compare and stop."""

from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from launch_tools import TESTS, processes_with, read_status, run_folders
from papermill.exceptions import PapermillExecutionError

from resnet_acc.launch import live

NOTEBOOK = TESTS.parent / "notebooks" / "03_explore.ipynb"
TINY = {"preset": "quick", "max_steps": 8, "batch_size": 8, "device": "cpu", "data": "synthetic"}


def run_notebook(folder: Path, monkeypatch: pytest.MonkeyPatch, **parameters: Any) -> nbformat.NotebookNode:
    """Execute from another folder, as a batch job would; nothing may be left in that one."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    values = {"output": str(folder / "out"), **TINY, **parameters}
    notebook = papermill.execute_notebook(NOTEBOOK, folder / "executed.ipynb", values, progress_bar=False)
    assert list(elsewhere.iterdir()) == []
    return notebook


def outputs(notebook: nbformat.NotebookNode, source: str, kind: str = "text/plain") -> str:
    """What the cell that holds this text has shown."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    texts = [output.get("text") or output.get("data", {}).get(kind, "") for output in cell.outputs]
    return "\n".join(filter(None, texts))


def test_two_arms_are_trained_attached_to_listed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run_notebook(tmp_path, monkeypatch, arms="eager,kernel", start=True, wait=True)
    kernel, eager = sorted(run_folders(tmp_path / "out"), key=lambda run_dir: run_dir.name, reverse=True)
    assert [run_dir.parent.name for run_dir in (eager, kernel)] == ["eager_x1", "kernel_x1"]
    assert [read_status(run_dir)["status"] for run_dir in (eager, kernel)] == ["finished", "finished"]

    assert "`kernel`: can run" in outputs(notebook, "panel.describe()", "text/markdown")
    assert "no run below" in outputs(notebook, "panel.show()")
    assert outputs(notebook, "panel.command").split()[1:4] == ["-m", "resnet_acc", "compare"]
    started = outputs(notebook, "panel.start(")
    assert started.startswith(f"$ {outputs(notebook, 'print(panel.command)').strip()}")
    assert all(f"run folder: {run_dir}" in started for run_dir in (eager, kernel))
    attached = outputs(notebook, "attach(panel.newest")
    assert attached.startswith(f"kernel_x1 {kernel.name} finished: ")
    assert "8/8" in attached
    listed = outputs(notebook, "panel.show_runs()")
    assert [line.split()[0] for line in listed.splitlines()[2:4]] == [kernel.name, eager.name]
    compared = outputs(notebook, "panel.compare(")
    assert f"kernel, 1 process ({kernel.name}) against eager, 1 process ({eager.name})" in compared
    for source in ("attach(panel.newest", "panel.show_runs()", "panel.compare("):
        assert len(outputs(notebook, source, "image/png")) > 10_000


def test_a_run_that_is_not_waited_for_outlives_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started, compared with nothing, shown while it goes on: and the kernel is gone before the run is."""
    notebook = run_notebook(tmp_path, monkeypatch, start=True, max_steps=100_000)
    assert "0 finished runs" in outputs(notebook, "panel.compare(")
    (run,) = live.find_running(tmp_path / "out")
    try:
        assert run.snapshot().status in ("starting", "running")
        assert not run.snapshot().ended
    finally:
        ended = run.stop()
    assert ended.status == "interrupted"
    for run_dir in run_folders(tmp_path / "out"):
        assert not processes_with(run_dir.name)


def test_stop_by_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run_notebook(tmp_path, monkeypatch, start=True, stop=True, max_steps=100_000)
    assert live.find_running(tmp_path / "out") == []
    assert "interrupted" in outputs(notebook, "newest.stop()")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"bacth_size": 64}, "batch_size"),
        ({"arms": "eager,fast"}, "'fast'"),
        ({"processes": 0}, "nproc_per_node is 0"),
        ({"start": "yes"}, "'yes'"),
    ],
)
def test_bad_parameters_stop_before_anything_starts(
    parameters: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        run_notebook(tmp_path, monkeypatch, **parameters)
    assert caught.value.ename == "ValueError"
    assert words in caught.value.evalue
    assert not (tmp_path / "out").exists()
