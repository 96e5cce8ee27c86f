"""The browser tests' own tools: which browser they take, that they say why they skip, and what a failure leaves."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser_tools import CHROMIUM_VARIABLE, ROOT, find_chromium
from launch_tools import TESTS

pytest_plugins = ["browser_fixtures"]

TWO_TESTS = """
from pathlib import Path

import browser_fixtures

browser_fixtures.RESULTS = Path(__file__).parent / "results"


def test_that_fails(lab):
    lab.open()
    lab.page.evaluate("console.log('said by the page')")
    raise RuntimeError


def test_that_passes(lab):
    lab.open()
"""


@pytest.fixture(autouse=True)
def _no_browser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHROMIUM_VARIABLE, raising=False)


def program(path: Path, status: int = 0) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return path


def run_pytest(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "test_two.py"
    file.write_text(TWO_TESTS)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "browser_fixtures",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            str(file),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_the_browser_is_the_first_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="apt install chromium"):
        find_chromium()
    google = program(tmp_path / "google-chrome")
    program(tmp_path / "chromium-browser", status=1)
    assert find_chromium() == str(google)
    chromium = program(tmp_path / "chromium")
    assert find_chromium() == str(chromium)


def test_a_browser_that_is_named_is_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "my browser")
    monkeypatch.setenv(CHROMIUM_VARIABLE, str(named))
    assert find_chromium() == str(named)
    named.unlink()
    with pytest.raises(ValueError, match="my browser"):
        find_chromium()


def test_the_suite_as_it_is_run_says_why_it_skips(tmp_path: Path) -> None:
    """With the repository's own options and no others, as bash prepare.sh test calls pytest."""
    files = [str(TESTS / f"test_browser_{name}.py") for name in ("notebook", "panel")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"=+ \d+ skipped in .*=+$", done.stdout.strip()), done.stdout
    assert re.search(r"^SKIPPED \[\d+\] .*no Chromium.*: apt install chromium", done.stdout, re.M), done.stdout


def test_without_playwright_the_tests_are_skipped_and_say_why(tmp_path: Path) -> None:
    (tmp_path / "playwright").mkdir()
    (tmp_path / "playwright" / "__init__.py").write_text("raise ImportError('no greenlet here')")
    done = run_pytest(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), str(TESTS)]))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 skipped")
    assert "bash prepare.sh test installs it: no greenlet here" in done.stdout


def test_a_failure_leaves_a_screenshot_and_logs(chromium_path: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, **{CHROMIUM_VARIABLE: chromium_path})
    assert re.match(r"1 failed, 1 passed in", done.stdout.splitlines()[-1]), done.stdout
    results = tmp_path / "results"
    assert [folder.name for folder in results.iterdir()] == ["test_that_fails"]
    assert (results / "test_that_fails" / "screenshot.png").stat().st_size > 10_000
    assert "said by the page" in (results / "test_that_fails" / "console.log").read_text()
    assert "Jupyter Server" in (results / "test_that_fails" / "server.log").read_text()


@pytest.fixture
def ci(tmp_path: Path) -> Path:
    """A checkout that holds .ci/run and a prepare.sh that only says what it was asked; root, with what g++ needs."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "prepare.sh").write_text('echo "prepare.sh $*"\n')
    programs = tmp_path / "bin"
    for name in ("g++", "python3"):
        program(programs / name)
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(shutil.which(name) or "")
    (programs / "id").write_text(f"#!{programs}/bash\necho 0\n")
    (programs / "id").chmod(0o755)
    return programs


def run_ci(ci: Path, apt_get: str = "") -> "subprocess.CompletedProcess[str]":
    """With an apt-get of these lines, which stand for the real one."""
    if apt_get:
        (ci / "apt-get").write_text(f'#!{ci}/bash\necho "apt-get $*" >>{ci.parent}/calls\n{apt_get}\n')
        (ci / "apt-get").chmod(0o755)
    command = [str(ci / "bash"), str(ci.parent / ".ci" / "run")]
    return subprocess.run(command, env={"PATH": str(ci)}, capture_output=True, text=True, timeout=60, check=False)


def test_ci_installs_chromium_where_there_is_none(ci: Path) -> None:
    done = run_ci(ci, apt_get="exit 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "prepare.sh test\n", "")
    calls = (ci.parent / "calls").read_text().splitlines()
    assert calls[0].startswith("apt-get update")
    assert re.search(r"^apt-get install .* chromium$", calls[1])
    assert len(calls) == 2

    (ci.parent / "calls").unlink()
    program(ci / "chromium")
    assert run_ci(ci, apt_get="exit 0").stdout == "prepare.sh test\n"
    assert not (ci.parent / "calls").exists()


@pytest.mark.parametrize("apt_get", ["exit 100", ""], ids=["no-network", "no-apt"])
def test_ci_goes_on_without_chromium_and_says_so(ci: Path, apt_get: str) -> None:
    done = run_ci(ci, apt_get)
    assert (done.returncode, done.stdout) == (0, "prepare.sh test\n")
    assert "the tests in a browser are skipped" in done.stderr
