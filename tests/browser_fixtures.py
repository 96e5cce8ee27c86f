"""A pytest plugin of the browser tests: the browser, the server, a page for each test, and what is kept of a failure.

Where playwright or Chromium is missing, whatever asks for these fixtures is skipped with the mend. What a failing test
saw (screenshot, the page's console, the server's log) goes to test-results/<test>/.
"""

import importlib
import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browser_tools import LONG_RUN, RESULTS, Lab, Server, find_chromium
from launch_tools import TESTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Notes on the test itself that it failed: the fixture which holds its page then keeps what there is to see."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Skips where there is nothing to test with."""
    try:
        importlib.import_module("playwright.sync_api")
    except ImportError as error:
        pytest.skip(f"the browser tests need playwright; bash prepare.sh test installs it: {error}")
    try:
        return find_chromium()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def chromium(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Browser]":
    """A browser that finds no other host, whatever network there is.

    Not for the whole session: while playwright runs, no other test could run asyncio.
    """
    from playwright.sync_api import sync_playwright

    home = str(tmp_path_factory.mktemp("chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path,
            chromium_sandbox=os.geteuid() != 0,
            args=["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
            env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home},
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def jupyter(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all browser tests. The runs of its kernelspec "fake" are hard to end, and last ten minutes."""
    folder = tmp_path_factory.mktemp("jupyter")
    server = Server(folder / "lab")
    pids = folder / "pids"
    pids.mkdir()
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    fake = {"RESNET_ACC_TRAINER": "fake_trainer", "FAKE_SPAWN": "session", "FAKE_PIDS": str(pids), **LONG_RUN}
    try:
        server.add_kernel("fake", {"PYTHONPATH": path, **fake})
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture
def lab(jupyter: Server, chromium: "Browser", request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A page without a past. After the test nothing may be left of its kernels and runs."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    shutil.rmtree(RESULTS / name, ignore_errors=True)
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = Lab(jupyter, context.new_page(), jupyter.root / name)
    try:
        yield page
    finally:
        try:
            if request.node.stash.get(_failed, False):
                page.keep(RESULTS / name)
        finally:
            context.close()
            left = jupyter.shut_down_kernels()
    assert not left
