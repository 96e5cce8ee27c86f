"""prepare.sh in a stand-in for a vendor's image, without an index: what it leaves, and what it leaves alone."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from stand_in import StandIn, add_wheel, make_stand_in

from resnet_acc.datasets.folder import count_images


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """One for the tests that change nothing, or only what they put back."""
    stand_in = make_stand_in(tmp_path_factory.mktemp("shared") / "a b")
    stand_in.add_wheel("seaborn", "0.13.2", ("numpy",))
    return stand_in


def state(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mtime_ns


def test_another_torch_is_kept_and_only_what_is_missing_is_installed(tmp_path):
    stand_in = make_stand_in(tmp_path / "a b")
    stand_in.add_wheel("seaborn", "0.13.2", ("numpy", "torch>=2.3"))
    stand_in.add_wheel("torch", "2.9.1")  # within reach, and pinned, but not to be taken
    stand_in.add_wheel("torch", "3.0.0")
    stand_in.add_wheel("torch_xla", "2.9.0")
    kept = [stand_in.packages / name / "__init__.py" for name in ("torch", "torchvision")]
    before = [state(path) for path in kept]

    first = stand_in.prepare()
    assert first.returncode == 0, first.stdout + first.stderr
    assert [state(path) for path in kept] == before
    assert (stand_in.packages / "seaborn" / "__init__.py").read_text() == "__version__ = '0.13.2'\n"
    assert not list(stand_in.packages.glob("torch-[!2]*")) + list(stand_in.packages.glob("torch_xla*"))
    assert sorted(path.name for path in stand_in.packages.glob("torch-*")) == ["torch-2.99.0+vendor.dist-info"]
    assert f"using {stand_in.venv}/bin/python (VIRTUAL_ENV)" in first.stdout
    assert "torch 2.99.0+vendor is already there and is kept" in first.stdout
    assert "torch-xla is left out: 2.9.0 needs torch 2.9.1, and torch 2.99.0+vendor is there" in first.stdout
    assert "to install: seaborn>=0.13\n" in first.stdout
    assert "arms that this environment can run on" in first.stdout
    assert count_images(stand_in.project / "data" / "mock_imagenet").train_images == 480
    assert not (stand_in.project / ".venv").exists()
    assert not (stand_in.packages / ".resnet_acc-installing.json").exists()

    files = {path: path.stat().st_mtime_ns for path in (stand_in.project / "data").rglob("*")}
    shutil.rmtree(stand_in.wheels)  # offline now
    again = stand_in.prepare()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "every package is there" in again.stdout
    assert "nothing was missing" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (stand_in.project / "data").rglob("*")} == files
    assert [state(path) for path in kept] == before


def test_it_stops_where_torch_would_have_to_be_replaced(tmp_path):
    stand_in = make_stand_in(tmp_path / "v")
    stand_in.add_wheel("seaborn", "0.13.2", ("torch==2.9.1",))
    stand_in.add_wheel("torch", "2.9.1")
    before = sorted(os.listdir(stand_in.packages)), state(stand_in.packages / "torch/__init__.py")
    stopped = stand_in.prepare()
    assert stopped.returncode == 1
    last = stopped.stderr.splitlines()[-1]
    assert last.startswith("prepare.sh: error: pip could not install seaborn>=0.13 beside ")
    assert "torch==2.99.0+vendor" in last
    assert not (stand_in.packages / "seaborn").exists()
    assert (sorted(os.listdir(stand_in.packages)), state(stand_in.packages / "torch/__init__.py")) == before


@pytest.mark.parametrize(
    ("torch", "torchvision", "message"),
    [
        ("2.2.2", "0.17.2", "torch 2.2.2 in {venv} is older than 2.3"),
        ("2.3.0a0+vendor", "0.17.0", "torchvision 0.17.0 is already in {venv} and would have to be replaced"),
    ],
)
def test_a_torch_that_does_not_fit_is_refused_and_nothing_changes(tmp_path, torch, torchvision, message):
    stand_in = make_stand_in(tmp_path, torch, torchvision)
    before = sorted(os.listdir(stand_in.packages))
    refused = stand_in.prepare()
    assert refused.returncode == 1
    assert message.format(venv=stand_in.venv) in refused.stderr.splitlines()[-1]
    assert "nothing was changed" in refused.stderr
    assert sorted(os.listdir(stand_in.packages)) == before
    assert not (stand_in.project / "data").exists()


def test_an_interrupted_install_is_completed(tmp_path):
    stand_in = make_stand_in(tmp_path / "v")
    stand_in.add_wheel("seaborn", "0.13.2", ("numpy",))
    stand_in.add_package("seaborn", "0.13.2", "half = True\n", whole=False)
    others = stand_in.prepare("--dry-run")
    assert "every package is there" in others.stdout  # nothing tells it from a whole one but the mark
    (stand_in.packages / ".resnet_acc-installing.json").write_text(json.dumps(["torch", "torchvision", "pip"]))
    done = stand_in.prepare()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the last install was interrupted; completing it" in done.stdout
    assert (stand_in.packages / "seaborn" / "__init__.py").read_text() == "__version__ = '0.13.2'\n"
    assert (stand_in.packages / "torch-2.99.0+vendor.dist-info").is_dir()
    assert not (stand_in.packages / ".resnet_acc-installing.json").exists()


def test_torch_comes_from_the_place_that_the_user_names(tmp_path):
    stand_in = make_stand_in(tmp_path, torch=None)
    own = tmp_path / "own wheels"
    own.mkdir()
    add_wheel(own, "torch", "2.9.1+cpu", ("what_torch_needs",))
    add_wheel(own, "torchvision", "0.24.1+cpu", ("torch==2.9.1",))
    for name, version in (("torch", "2.9.1"), ("torchvision", "0.24.1"), ("torch_xla", "2.9.0"), ("seaborn", "0.13.2")):
        stand_in.add_wheel(name, version)
    stand_in.add_wheel("what_torch_needs", "1.0")
    refused = stand_in.prepare(RESNET_ACC_TORCH_INDEX=str(tmp_path / "nowhere"))
    assert refused.returncode == 1
    assert f"RESNET_ACC_TORCH_INDEX is '{tmp_path}/nowhere'" in refused.stderr.splitlines()[-1]
    done = stand_in.prepare(RESNET_ACC_TORCH_INDEX=str(own))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {name: (stand_in.packages / name / "__init__.py").read_text() for name in ("torch", "torchvision")}
    assert found == {"torch": "__version__ = '2.9.1+cpu'\n", "torchvision": "__version__ = '0.24.1+cpu'\n"}
    assert (stand_in.packages / "what_torch_needs").is_dir()
    assert (stand_in.packages / "torch_xla").is_dir()


def test_without_a_network_it_says_so(shared, tmp_path):
    failed = shared.prepare(PIP_FIND_LINKS=str(tmp_path))
    assert failed.returncode == 1
    assert "pip could not install seaborn>=0.13 into" in failed.stderr.splitlines()[-1]
    assert "check the network" in failed.stderr.splitlines()[-1]
    assert not (shared.packages / ".resnet_acc-installing.json").exists()


def test_dry_run_changes_nothing(shared):
    before = {path: path.stat().st_mtime_ns for path in shared.project.rglob("*") if "__pycache__" not in str(path)}
    packages = sorted(os.listdir(shared.packages))
    done = shared.prepare("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "to install: seaborn>=0.13" in done.stdout
    after = {path: path.stat().st_mtime_ns for path in shared.project.rglob("*") if "__pycache__" not in str(path)}
    assert {path for path in before.keys() | after if before.get(path) != after.get(path)} <= {
        shared.project / "src" / "resnet_acc"  # Python's own cache folder
    }
    assert sorted(os.listdir(shared.packages)) == packages


def test_unknown_words_are_refused(shared):
    for words in (["tset"], ["demo", "test"], ["--dryrun"], [""]):
        refused = shared.prepare(*words)
        assert refused.returncode == 2
        assert f"'{words[0]}'" in refused.stderr
        assert refused.stdout == ""
    for word in ("--help", "-h"):
        shown = shared.prepare(word)
        assert shown.returncode == 0
        for term in ("demo", "test", "--dry-run", "RESNET_ACC_TORCH_INDEX", "RESNET_ACC_PYTHON"):
            assert term in shown.stdout


def test_a_second_prepare_waits_and_says_so(shared):
    with subprocess.Popen(["flock", str(shared.project / "prepare.sh"), "sleep", "2"]) as holder:
        time.sleep(0.5)
        done = shared.prepare("--dry-run")
        holder.wait()
    assert done.returncode == 0, done.stderr
    assert f"another prepare.sh is at work ({shared.project}); waiting for it" in done.stdout


def test_the_kernel_of_the_calling_notebook_is_used(shared, tmp_path):
    launcher = tmp_path / "ipykernel_launcher.py"
    launcher.write_text("import subprocess, sys\nsys.exit(subprocess.run(['bash', *sys.argv[1:]]).returncode)\n")
    done = subprocess.run(
        [str(shared.venv / "bin" / "python"), str(launcher), str(shared.project / "prepare.sh"), "--dry-run"],
        env=shared.environment(VIRTUAL_ENV="/nonexistent"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"using {shared.venv}/bin/python (the notebook's kernel)" in done.stdout


def test_environments_are_taken_in_order(shared, tmp_path):
    conda = shared.prepare("--dry-run", VIRTUAL_ENV="", CONDA_PREFIX=str(shared.venv))
    assert f"using {shared.venv}/bin/python (CONDA_PREFIX)" in conda.stdout
    chosen = shared.prepare("--dry-run", VIRTUAL_ENV="/nonexistent", RESNET_ACC_PYTHON="bin/python")
    assert f"using {shared.venv}/bin/python (RESNET_ACC_PYTHON)" in chosen.stdout
    gone = shared.prepare("--dry-run", VIRTUAL_ENV=str(tmp_path))
    assert gone.returncode == 1
    assert f"{tmp_path}/bin/python (VIRTUAL_ENV) does not run" in gone.stderr
    wrong = shared.prepare("--dry-run", RESNET_ACC_PYTHON="no-such-python")
    assert wrong.returncode == 1
    assert "'no-such-python'" in wrong.stderr


def fake_python(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    return folder / name


@pytest.mark.parametrize(("kind", "code", "text"), [("managed", 0, "PEP 668"), ("old", 1, "older than Python 3.10")])
def test_a_python_that_cannot_be_used_is_named(shared, tmp_path, kind, code, text):
    fake_python(tmp_path / "bin", "python", f"echo {kind}")
    done = shared.prepare("--dry-run", VIRTUAL_ENV=str(tmp_path))
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
    assert f"{tmp_path}/bin/python (VIRTUAL_ENV)" in done.stdout + done.stderr
    assert ("would make .venv with" in done.stdout) == (kind == "managed")


def test_a_python_without_venv_is_named_with_the_mend(shared, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "readlink", "flock", "sed", "tr", "cat", "rm", "mktemp"):
        (tools / name).symlink_to(shutil.which(name))
    fake_python(tools, "python3", 'case "$*" in *ensurepip*) exit 1;; -) echo broken;; *) exit 0;; esac')
    done = shared.prepare(VIRTUAL_ENV="", PATH=str(tools))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("has no venv module; on Debian and Ubuntu: apt install python3-venv")
    (tools / "python3").unlink()
    assert "there is no Python 3.10 to 3.13 here" in shared.prepare(VIRTUAL_ENV="", PATH=str(tools)).stderr


NOTEBOOK = """
import json, os, pathlib, sys
assert preset == "quick", preset
assert sys.prefix == os.environ["VIRTUAL_ENV"], sys.prefix
comparison = pathlib.Path(output) / "comparisons" / "new"
(comparison / "figures").mkdir(parents=True)
(comparison / "comparison.json").write_text("{}")
(comparison / "report.html").write_text("report")
(comparison / "figures" / "throughput.png").write_bytes(b"png")
print("in", sys.prefix)
"""


def test_demo_runs_the_notebook_in_this_environment_and_prints_three_paths(tmp_path):
    stand_in = make_stand_in(tmp_path / "a b")
    stand_in.add_package("seaborn", "0.13.2", "")
    parameters = nbformat.v4.new_code_cell('preset = "article"\noutput = "output"', metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[parameters, nbformat.v4.new_code_cell(NOTEBOOK)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (stand_in.project / "notebooks").mkdir()
    nbformat.write(notebook, stand_in.project / "notebooks" / "01_resnet50.ipynb")
    # A kernel of the same name that the user has for something else.
    kernel = tmp_path / "home" / ".local" / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text('{"argv": ["/bin/false"], "display_name": "x", "language": "python"}')
    old = stand_in.project / "output" / "comparisons" / "old"
    old.mkdir(parents=True)
    (old / "comparison.json").write_text("{}")

    done = stand_in.prepare("demo", HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stdout + done.stderr
    output = stand_in.project / "output"
    assert done.stdout.splitlines()[-3:] == [
        f"prepare.sh: executed notebook: {output}/notebooks/01_resnet50.executed.ipynb",
        f"prepare.sh: report: {output}/comparisons/new/report.html",
        f"prepare.sh: figure: {output}/comparisons/new/figures/throughput.png",
    ]
    assert f"in {stand_in.venv}" in (output / "notebooks" / "01_resnet50.executed.ipynb").read_text()

    failed = stand_in.prepare("demo", HOME=str(tmp_path / "home"))  # "new" is there: the notebook stops
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("prepare.sh: error: the notebook failed")


@pytest.mark.skipif(not os.path.exists(Path(sys.prefix) / "bin" / "ruff"), reason="the extra test is not installed")
def test_test_ends_with_pytests_line_and_fails_with_any_check(tmp_path):
    stand_in = make_stand_in(tmp_path / "v")
    stand_in.add_package("seaborn", "0.13.2", "")
    shutil.rmtree(stand_in.project / "src" / "resnet_acc" / "results")  # quick to check, and broken for import-linter
    (stand_in.project / "tests").mkdir()
    (stand_in.project / "tests" / "test_one.py").write_text("def test_one():\n    assert True\n")
    done = stand_in.prepare("test")
    assert done.returncode == 1
    assert "prepare.sh: failed: " in done.stderr, done.stdout + done.stderr
    assert "import-linter" in done.stderr.split("prepare.sh: failed: ")[1]
    last = done.stdout.splitlines()[-1]
    assert " 1 passed in " in last, last
