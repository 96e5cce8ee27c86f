"""The notebooks: what stands in them, and that papermill runs them from any folder and stops on bad parameters."""

import ast
import dataclasses
import json
import re
import shutil
from pathlib import Path

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from resnet_acc.config import RunConfig

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIRST = ROOT / "notebooks" / "01_resnet50.ipynb"
CHINESE = r"[\u4e00-\u9fff]"
TINY = {"preset": "quick", "max_steps": 8, "batch_size": 8}


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def parameters_cell(path: Path) -> str:
    (cell,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    return cell.source


def test_there_are_notebooks() -> None:
    assert FIRST in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stripped_and_asks_for_the_environments_kernel(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_opens_in_both_languages_and_ends_with_an_exercise(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    title, english, chinese = [part for part in cells[0].source.split("\n\n") if part.strip()][:3]
    assert title.startswith("# ")
    assert re.search(CHINESE, title)
    assert not re.search(CHINESE, english)
    assert len(re.findall(CHINESE, chinese)) > 20
    opening = "\n".join(cell.source for cell in cells[:3])
    assert "What you will learn" in opening
    (duration,) = [line for line in opening.splitlines() if line.startswith("How long it takes")]
    assert re.search(r"minute.*CPU|CPU.*minute", duration)
    assert "GPU" in duration
    ending = cells[-1].source
    assert cells[-1].cell_type == "markdown"
    assert "Exercise" in ending.splitlines()[0]
    question, _, answer = ending.partition("<details>")
    assert len(question) > 100
    assert len(answer.partition("</summary>")[2]) > 100


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_imports_and_never_defines_or_trains(path: Path) -> None:
    for cell in code_cells(path):
        tree = ast.parse(cell.source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 5
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for name in [*names, module]:
                assert name.split(".")[0] not in ("torch", "torch_xla", "torchvision"), name
                assert not name.startswith("resnet_acc.training"), name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_literals_with_a_comment_each(path: Path) -> None:
    lines = parameters_cell(path).splitlines()
    assert lines[0].startswith("# Parameters ")
    known = {spec.name for spec in dataclasses.fields(RunConfig)} | words_that_its_imports_read(path)
    for line in lines[1:]:
        name, _, value = line.partition(" = ")
        ast.literal_eval(value)
        assert re.search(r"  # \S", line), line
        assert name in known, f"nothing reads {name}"


def words_that_its_imports_read(path: Path) -> set[str]:
    """Texts in the modules (with their packages) that a notebook imports, and names in its code cells."""
    found: set[str] = set()
    sources = [cell.source for cell in code_cells(path) if "parameters" not in cell.metadata.get("tags", [])]
    for source in list(sources):
        for node in ast.walk(ast.parse(source)):
            found |= {node.id} if isinstance(node, ast.Name) else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("resnet_acc."):
                place = ROOT / "src" / (node.module or "").replace(".", "/")
                files = place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]
                sources += [file.read_text() for file in files]
    for source in sources:
        found |= {
            node.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found


def run_notebook(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **parameters) -> nbformat.NotebookNode:
    """Execute from another folder, as a batch job would."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    return papermill.execute_notebook(
        path, folder / "executed.ipynb", {"output": str(folder / "out"), **parameters}, progress_bar=False
    )


def printed(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(
        output.get("text", "") or str(output.get("data", {}).get("text/markdown", ""))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )


def comparison_of(folder: Path) -> tuple[Path, dict]:
    (path,) = (folder / "out" / "comparisons").glob("*/comparison.json")
    return path.parent, json.loads(path.read_text())


def test_walkthrough_trains_every_arm_that_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run_notebook(FIRST, tmp_path, monkeypatch, **TINY, processes=1)
    folder, comparison = comparison_of(tmp_path)
    expected = ["eager", "torchacc", "kernel", *(["inductor"] if shutil.which("g++") else [])]
    assert [(run["arm"], run["nproc"], run["status"]) for run in comparison["runs"]] == [
        (arm, 1, "finished") for arm in expected
    ]
    assert [skipped["arm"] for skipped in comparison["skipped"]] == [arm for arm in ["inductor"] if arm not in expected]
    text = printed(notebook)
    for arm in expected[1:]:
        assert f"{arm} against eager" in text
    assert "python -m resnet_acc.launch_single_task --amp_level=O1" in text
    assert "--compiler-opt" in text
    assert (folder / "report.html").stat().st_size < 3_000_000
    assert (folder / "figures" / "throughput.png").is_file()
    (figure,) = (tmp_path / "out" / "figures").glob("resnet18_*.png")
    assert figure.stat().st_size > 10_000
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_walkthrough_repeats_in_turn_on_one_and_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_notebook(FIRST, tmp_path, monkeypatch, **TINY, arms="eager", processes="1,2", repeats=2)
    _, comparison = comparison_of(tmp_path)
    order = [(run["repeat"], run["nproc"]) for run in comparison["runs"]]
    assert order == [(0, 1), (0, 2), (1, 2), (1, 1)]
    assert len(list((tmp_path / "out").glob("resnet18/*/eager_x2/*/1/metrics.jsonl"))) == 2


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"bacth_size": 64}, "batch_size"),
        ({"batch_size": "64"}, "'64'"),
        ({"amp_level": 1}, "amp_level"),
        ({"arms": "eager,fast"}, "'fast'"),
        ({"processes": "0"}, "nproc_per_node is 0"),
        ({"processes": 0}, "nproc_per_node is 0"),
        ({"processes": "two"}, "'two'"),
        ({"repeats": 0}, "repeats is 0"),
        ({"preset": "slow"}, "'slow'"),
    ],
)
def test_bad_parameters_stop_before_anything_trains(
    parameters: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        run_notebook(FIRST, tmp_path, monkeypatch, **parameters)
    assert caught.value.ename == "ValueError"
    assert words in caught.value.evalue
    assert not (tmp_path / "out").exists()
