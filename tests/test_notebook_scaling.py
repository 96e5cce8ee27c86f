"""Notebook 05 through papermill, from another folder: one and two processes, and two machines that are this one."""

import json
from pathlib import Path

import pytest
from papermill.exceptions import PapermillExecutionError
from test_notebooks import printed, run_notebook

from resnet_acc.results.runs import find_runs, load_run
from resnet_acc.results.scaling import MACHINES, PROCESSES, scaling_series

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "05_scaling.ipynb"
TINY = {"preset": "quick", "batch_size": 4, "max_steps": 12, "warmup_steps": 2, "log_interval": 2, "amp_level": "O0"}


def test_processes_communication_and_machines_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run_notebook(
        NOTEBOOK, tmp_path, monkeypatch, **TINY, processes="1,2", repeats=1, communication_repeats=3
    )
    runs = [load_run(folder) for folder in find_runs(tmp_path / "out")]
    assert all(run.is_result and run.steady.steps == 10 for run in runs)
    layouts = [json.loads((run.run_dir / "config.json").read_text()) for run in runs]
    assert sorted((values["nnodes"], values["node_rank"], values["nproc_per_node"]) for values in layouts) == [
        (1, 0, 1),
        (1, 0, 2),
        (2, 0, 1),
        (2, 1, 1),
    ]
    series = {one.axis: one for one in scaling_series(runs)}
    assert [point.count for point in series[PROCESSES].points] == [1, 2]
    assert [point.count for point in series[MACHINES].points] == [1, 2]
    assert series[MACHINES].shared
    efficiency = series[PROCESSES].points[1].efficiency
    assert efficiency.low < efficiency.value < efficiency.high
    text = printed(notebook)
    assert f"an efficiency of {100 * efficiency.value:,.1f} [" in text
    assert "46.8 MB in float32" in text  # ResNet-18's 11,689,512 parameters
    assert "--nnodes=2 --node_rank=1 --master_addr=10.0.0.1" in text
    assert "[machine 1] finished: " in text
    assert "all counts shared the same hardware" in text
    assert "Measured on a CPU: it says nothing about GPUs." in text
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_bad_counts_stop_before_anything_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        run_notebook(NOTEBOOK, tmp_path, monkeypatch, **TINY, processes="1,two")
    assert "processes is '1,two'" in caught.value.evalue
    assert not (tmp_path / "out").exists()
