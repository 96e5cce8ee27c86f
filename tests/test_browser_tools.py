"""The browser tests' own tools: which browser they take, that they say why they skip, and what a failure leaves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser_tools import CHROMIUM_VARIABLE, find_chromium
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


def test_without_a_browser_the_tests_are_skipped_and_say_why(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 skipped")
    assert "apt install chromium" in done.stdout


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
