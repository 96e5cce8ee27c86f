"""The parameters cell: papermill's guesses and misspelt names stop before anything trains."""

from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from resnet_acc.launch.parameters import config_parameters, notebook_parameters

CELL = """# Parameters of this notebook
preset = "quick"
amp_level = "O1"  # O0 or O1
batch_size = 128
lr = 0.1
compiler_opt = False
max_steps = None
limit: int | None = None
arms = ["eager", "kernel"]
nproc = [1, 2]
run_name = "first"
"""


def read(injected: str = "", cell: str = CELL, types: dict[str, Any] | None = None) -> dict[str, Any]:
    namespace: dict[str, Any] = {"In": ["", "import os", cell]}
    exec(cell, namespace)
    if injected:
        namespace["In"].append(f"# Parameters\n{injected}\n")
        exec(injected, namespace)
    return notebook_parameters(namespace, types)


def test_declared_values_alone() -> None:
    values = read()
    assert values == {
        "preset": "quick",
        "amp_level": "O1",
        "batch_size": 128,
        "lr": 0.1,
        "compiler_opt": False,
        "max_steps": None,
        "limit": None,
        "arms": ["eager", "kernel"],
        "nproc": [1, 2],
        "run_name": "first",
    }
    assert set(config_parameters(values)) == {"amp_level", "batch_size", "lr", "compiler_opt", "max_steps"}


@pytest.mark.parametrize(
    ("injected", "name", "value"),
    [
        ("batch_size = 64", "batch_size", 64),
        ("batch_size = 64.0", "batch_size", 64),
        ("lr = 1", "lr", 1.0),
        ("compiler_opt = True", "compiler_opt", True),
        ("max_steps = 20", "max_steps", 20),
        ("max_steps = 20.0", "max_steps", 20),
        ("limit = 3", "limit", 3),
        ('arms = "eager, torchacc"', "arms", ["eager", "torchacc"]),
        ('arms = "eager"', "arms", ["eager"]),
        ('nproc = "1,4"', "nproc", [1, 4]),
        ("nproc = 2", "nproc", [2]),
        ("nproc = [2.0]", "nproc", [2]),
        ('run_name = "007"', "run_name", "007"),
    ],
)
def test_values_that_fit(injected: str, name: str, value: Any) -> None:
    found = read(injected)[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("injected", "words"),
    [
        ('compiler_opt = "false"', ["compiler_opt", "'false'", "bool", "True or False"]),
        ("compiler_opt = 0", ["compiler_opt", "0 (int)"]),
        ("batch_size = 64.5", ["batch_size", "64.5"]),
        ("batch_size = True", ["batch_size", "True"]),
        ('batch_size = "64"', ["batch_size", "'64'", "int"]),
        ("amp_level = 1", ["amp_level", "1 (int)", "str", "-r amp_level"]),
        ("run_name = 7", ["run_name", "7", "-r run_name"]),
        ("bacth_size = 64", ["bacth_size", "did you mean batch_size"]),
        ("xyz = 64", ["xyz", "batch_size"]),
        ('max_steps = "20"', ["max_steps", "'20'"]),
        ('limit = "x"', ["limit", "'x'"]),
        ("arms = [1]", ["arms", "1 (int)"]),
        ('nproc = "1,b"', ["nproc", "'b'"]),
        ('arms = ""', ["arms", "''"]),
        ("nproc = []", ["nproc", "[]"]),
    ],
)
def test_values_that_do_not_fit(injected: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as caught:
        read(injected)
    for word in words:
        assert word in str(caught.value)


def test_types_for_names_declared_as_none() -> None:
    cell = "# Parameters\nanything = None\n"
    assert read("anything = 'x'", cell)["anything"] == "x"
    with pytest.raises(ValueError, match="'x'"):
        read("anything = 'x'", cell, {"anything": int | None})
    assert read("anything = 2.0", cell, {"anything": int}) == {"anything": 2}


def test_a_cell_edited_and_run_again_is_the_declared_one() -> None:
    namespace: dict[str, Any] = {"In": ["", CELL]}
    edited = CELL + "added = 1\n"
    exec(edited, namespace)
    namespace["In"].append(edited)
    assert notebook_parameters(namespace)["added"] == 1


def test_no_parameters_cell_is_said() -> None:
    with pytest.raises(ValueError, match="# Parameters"):
        notebook_parameters({"In": ["", "batch_size = 1"]})
    with pytest.raises(ValueError, match="literal"):
        read(cell="# Parameters\nimport os\nbatch_size = os.cpu_count()\n")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"batch_size": 64, "arms": "eager"}, None), ({"compiler_opt": "false"}, "compiler_opt"), ({"bacth": 1}, "bacth")],
)
def test_through_papermill(tmp_path: Path, parameters: dict[str, Any], said: str | None) -> None:
    code = "from resnet_acc.launch.parameters import notebook_parameters\nprint(notebook_parameters(globals()))"
    cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_code_cell(code)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")

    def execute() -> None:
        out = tmp_path / "out.ipynb"
        papermill.execute_notebook(str(tmp_path / "in.ipynb"), str(out), parameters, progress_bar=False)

    if said is None:
        execute()
        assert "'batch_size': 64" in (tmp_path / "out.ipynb").read_text()
    else:
        with pytest.raises(papermill.PapermillExecutionError, match=said):
            execute()
