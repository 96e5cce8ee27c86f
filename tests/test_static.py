"""What the files of the repository must say, read without running them."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from resnet_acc import __version__
from resnet_acc.requirements import canonical

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "resnet_acc"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
INNER = ("training", "checkpoints.py", "config.py", "files.py", "logger.py")
INNER_PACKAGES = {"torch", "torchvision", "torch_xla", "torchacc", "resnet_acc"}


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(python: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            assert canonical(requirement.name) not in found, f"two pins of {requirement.name} for Python {python}"
            assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), line
            found[canonical(requirement.name)] = str(requirement.specifier)[2:]
    return found


def requirements(project: dict, *extras: str) -> list[Requirement]:
    lines = list(project["project"]["dependencies"])
    for extra in extras:
        lines += project["project"]["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_direct_dependency_is_pinned_within_its_range(project, python):
    pinned = pins(python)
    extras = ("xla", "nvidia-xla", "nvidia-xla-cuda13", "test", "dev")
    wanted = [item for item in requirements(project, *extras) if item.name != "resnet_acc"]
    for item in wanted:
        assert canonical(item.name) in pinned, f"{item.name} has no pin for Python {python}"
        assert item.specifier.contains(pinned[canonical(item.name)]), item
    assert set(pinned) == {canonical(item.name) for item in wanted}


def test_the_pins_that_the_walkthrough_is_about():
    for python in PYTHONS:
        pinned = pins(python)
        assert (pinned["torch"], pinned["torchvision"], pinned["torch-xla"]) == ("2.9.1", "0.24.1", "2.9.0")


def test_ranges_are_wide(project):
    ranges = {canonical(item.name): item.specifier for item in requirements(project, "xla")}
    for torch, torchvision in (("2.3.1", "0.18.1"), ("2.9.1", "0.24.1"), ("2.14.1", "0.29.1"), ("3.0", "1.0")):
        assert ranges["torch"].contains(torch)
        assert ranges["torchvision"].contains(torchvision)
    assert not ranges["torch"].contains("2.2.2")
    assert "torch-xla" not in {canonical(item.name) for item in requirements(project)}
    assert project["project"]["requires-python"] == ">=3.10"
    assert project["project"]["version"] == __version__


def test_conda_environment_says_the_same_pins(project):
    text = (ROOT / "environment.yml").read_text()
    python = re.search(r"^  - python=(3\.\d+)$", text, re.M)[1]
    listed = dict(re.findall(r"^      - ([\w-]+)==(\S+)$", text, re.M))
    wanted = {canonical(item.name) for item in requirements(project, "xla")}
    assert listed == {name: version for name, version in pins(python).items() if name in wanted}


def imports(path: Path) -> set[str]:
    """Top-level names of the packages that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {arg.value.split(".")[0] for arg in node.args if isinstance(arg, ast.Constant) and arg.value}
    return found


def inner_files() -> list[Path]:
    return [
        path for name in INNER for path in ([SOURCE / name] if name.endswith(".py") else (SOURCE / name).rglob("*.py"))
    ]


def test_what_a_rank_runs_imports_torch_and_the_standard_library_only():
    files = inner_files()
    assert len(files) > 8
    for path in files:
        foreign = imports(path) - sys.stdlib_module_names - INNER_PACKAGES
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_every_module_stands_in_one_of_the_two_rings(project):
    inner, outer = (contract["source_modules"] for contract in project["tool"]["importlinter"]["contracts"])
    there = {
        f"resnet_acc.{path.stem}"
        for path in SOURCE.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").is_file()
    }
    assert not set(inner) & set(outer)
    assert set(inner) | set(outer) == there
    assert set(outer) <= set(project["tool"]["importlinter"]["contracts"][0]["forbidden_modules"])


def test_everything_that_is_imported_is_declared(project):
    homes = importlib.metadata.packages_distributions()
    declared = {canonical(item.name) for item in requirements(project)} | {"resnet-acc"}
    # IPython comes with ipykernel; the compilers are an extra, or a vendor's.
    declared |= {"ipython", "torch-xla"}
    for path in SOURCE.rglob("*.py"):
        for name in imports(path) - sys.stdlib_module_names - {"torchacc", "tomli", "pip"}:
            dists = {canonical(dist) for dist in homes.get(name, [name])}
            assert dists & declared, f"{path.relative_to(ROOT)} imports {name}, which pyproject.toml does not declare"


def test_set_up_runs_before_anything_is_installed():
    for name in ("requirements.py", "installer.py", "__init__.py"):
        assert imports(SOURCE / name) <= sys.stdlib_module_names | {"resnet_acc", "packaging", "tomli", "pip"}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_registry_is_named():
    hosts = re.compile(
        r"pypi\.(org|python)|pythonhosted|download\.pytorch|conda\.(io|anaconda)|anaconda\.org|mirrors?\.[a-z]+\."
    )
    for path in tracked():
        if path.name != Path(__file__).name:
            assert not hosts.search(path.read_text(errors="replace")), f"{path} names a registry's host"


def test_files_and_functions_stay_small():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 320, f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = [item for item in node.body if not isinstance(getattr(item, "value", None), ast.Constant)]
                size = node.end_lineno - body[0].lineno + 1 if body else 0
                assert size <= 50, f"{path.relative_to(ROOT)}: {node.name} has {size} lines"


def test_scripts_are_for_bash_and_stop_at_the_first_error():
    for name in ("prepare.sh", ".ci/run"):
        text = (ROOT / name).read_text()
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "set -euo pipefail" in text
        assert subprocess.run(["bash", "-n", str(ROOT / name)], check=False).returncode == 0
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert "bash prepare.sh test" in (ROOT / ".ci/run").read_text()


def test_licence_is_apache_2(project):
    assert project["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_pins_are_versions():
    for version in pins("3.12").values():
        Version(version)
