"""Notebook 04 through papermill, from another folder: on real images, and on a folder with something wrong."""

from pathlib import Path

import pytest
from papermill.exceptions import PapermillExecutionError
from test_notebooks import printed, run_notebook

from resnet_acc.datasets.arrays import write_image_folder
from resnet_acc.results.runs import find_runs, load_run

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "04_real_data.ipynb"
TINY = {"preset": "quick", "loader_seconds": 0.3, "loader_repeats": 2, "worker_counts": "0,1", "amp_level": "O0"}


def test_real_digits_are_checked_loaded_and_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scikit-learn's 1,797 digits: guessing gets 10 %, one epoch of ResNet-18 far more."""
    pytest.importorskip("sklearn")
    notebook = run_notebook(NOTEBOOK, tmp_path, monkeypatch, **TINY, data="digits", epochs=1)
    text = printed(notebook)
    assert "1,797 images looked at" in text
    assert "nothing wrong was found" in text
    assert "Always naming the most frequent class would get 10.1 %: **it has learned**" in text
    runs = {run.tag.rpartition("_")[2]: run for run in map(load_run, find_runs(tmp_path / "out"))}
    assert set(runs) == {"digits", "synthetic"}
    digits = runs["digits"]
    (validation,) = digits.validations
    assert validation["images"] == 355
    assert validation["acc1"] > 30.0
    assert digits.params["num_classes"] == 10
    assert digits.num_steps == 1442 // 16
    assert runs["synthetic"].images_per_s > 0
    assert "workers 0, repeat 1: " in text
    assert "a step is spent waiting for the next batch" in text
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_with_a_bad_image_stops_before_anything_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [[[value] * 8] * 8 for value in range(40)]
    write_image_folder(images, ["a", "b"] * 20, tmp_path / "images")
    bad = tmp_path / "images" / "train" / "b" / "bad.jpg"
    bad.write_bytes(b"<html>not found</html>")
    with pytest.raises(PapermillExecutionError) as caught:
        run_notebook(NOTEBOOK, tmp_path, monkeypatch, **TINY, data=str(tmp_path / "images"))
    assert caught.value.ename == "ValueError"
    assert f"{bad}: it is text such as HTML or XML" in caught.value.evalue
    assert not (tmp_path / "out").exists()


def test_a_misspelt_parameter_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        run_notebook(NOTEBOOK, tmp_path, monkeypatch, dat="digits")
    assert "did you mean data" in caught.value.evalue
