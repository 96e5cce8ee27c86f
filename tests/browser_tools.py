"""A real JupyterLab server and a page of it, for the browser tests."""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import psutil
from launch_tools import TESTS, wait_for
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page

ROOT = TESTS.parent
RESULTS = ROOT / "test-results"
CHROMIUM_VARIABLE = "RESNET_ACC_CHROMIUM"
MARK_VARIABLE = "RESNET_ACC_BROWSER_TESTS"
"""Everything that the server starts, and what that starts, carries this: so it is found when its parents are gone."""
LOAD_MS = 120_000
"""How long the page may take for anything: JupyterLab's first load alone takes 20 s on two busy cores."""
END_SECONDS = 15.0
"""Within this long after a stop nothing of a run is left."""
LONG_RUN = {"FAKE_STEPS": "6000", "FAKE_STEP_S": "0.1"}
"""A run that would go on for ten minutes."""
_SETTINGS = {"notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}}


def find_chromium() -> str:
    """The browser's path.

    Raises:
        ValueError: RESNET_ACC_CHROMIUM names no program.
        FileNotFoundError: there is none; the message says the mend.
    """
    if named := os.environ.get(CHROMIUM_VARIABLE):
        if not _runs(named):
            raise ValueError(f"{CHROMIUM_VARIABLE} is {named!r}, which does not run; give the path of a Chromium")
        return named
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path and _runs(path):
            return path
    raise FileNotFoundError(
        "there is no Chromium for the browser tests; on Debian: apt install chromium, "
        f"or give the path of one that is not on PATH in {CHROMIUM_VARIABLE}"
    )


def _runs(path: str) -> bool:
    """Ubuntu's chromium-browser may be a script that only says where to get it."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def command_of(process: psutil.Process) -> str:
    """Its command, or nothing once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Server:
    """JupyterLab on the loopback address, with folders of its own for everything.

    Args:
        folder: an empty folder. Notebooks are served from its notebooks/, so the checkout is never changed.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.log = folder / "server.log"
        self.token, self._mark = secrets.token_hex(16), secrets.token_hex(8)
        self._folder = folder
        self.root.mkdir(parents=True)
        (folder / "tmp").mkdir()
        self._write_settings()
        self.add_kernel("python3")
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.root_dir={self.root}"],
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.url = ""

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
        own = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTER_PATH": "kernelspecs",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
            "TMPDIR": "tmp",  # where live runs keep their locks
        }
        folders = {name: str(self._folder / value) for name, value in own.items()}
        return {**kept, **folders, "JUPYTER_TOKEN": self.token, MARK_VARIABLE: self._mark}

    def _write_settings(self) -> None:
        server = {"ip": "127.0.0.1", "port": 0, "allow_root": True, "open_browser": False}
        lab = {"news_url": None, "extension_manager": "readonly"}
        _write_json(self._folder / "config" / "jupyter_server_config.json", {"ServerApp": server, "LabApp": lab})
        for name, values in _SETTINGS.items():
            folder = self._folder / "settings" / "@jupyterlab" / "apputils-extension"
            _write_json(folder / f"{name}.jupyterlab-settings", values)

    def add_kernel(self, name: str, environment: dict[str, str] | None = None) -> None:
        """A kernelspec of this Python, as prepare.sh makes it; what its kernels start inherits its environment."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": command, "display_name": name, "language": "python", "env": environment or {}}
        _write_json(self._folder / "kernelspecs" / "kernels" / name / "kernel.json", spec)

    def wait(self) -> None:
        """Until it answers."""

        def answers() -> bool:
            assert self._process.poll() is None, f"JupyterLab ended: {self.log.read_text(errors='replace')[-2000:]}"
            for path in (self._folder / "runtime").glob("jpserver-*.json"):
                with contextlib.suppress(ValueError, OSError):  # half written, or not yet listening
                    self.url = f"http://127.0.0.1:{json.loads(path.read_text())['port']}"
                    return bool(self.ask("GET", "/api/status"))
            return False

        wait_for(answers, LOAD_MS / 1000)

    def ask(self, method: str, path: str) -> Any:
        """What the server's REST API answers, or None where that is nothing."""
        request = urllib.request.Request(
            self.url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def processes(self) -> list[psutil.Process]:
        """Live processes that the server started, directly or not, kernels among them; never the server itself."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.pid != self._process.pid and process.environ().get(MARK_VARIABLE) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kernels(self) -> list[psutil.Process]:
        """The kernels among these processes."""
        return [process for process in self.processes() if "ipykernel_launcher" in command_of(process)]

    def runs(self) -> list[str]:
        """Commands of the others: launchers, ranks and what these started."""
        commands = {process.pid: command_of(process) for process in self.processes()}
        return [f"{pid} {line}" for pid, line in commands.items() if line and "ipykernel_launcher" not in line]

    def wait_until_no_run_is_left(self) -> None:
        """Fails, with the commands of what there is, after 15 s."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.runs(), END_SECONDS)
        assert self.runs() == []

    def shut_down_kernels(self) -> list[str]:
        """End all kernels and return what outlived them, which is ended too."""
        for session in self.ask("GET", "/api/sessions"):
            self.ask("DELETE", f"/api/sessions/{session['id']}")
        return self._end_rest()

    def _end_rest(self) -> list[str]:
        """What is still there when what ends with its kernel has had the time to."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.processes(), END_SECONDS)
        left = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                left.append(f"{process.pid} {command_of(process)}")
                process.kill()
        return left

    def stop(self) -> None:
        """End the server.

        Raises:
            AssertionError: something that it started was left.
        """
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            left = self._end_rest()
        assert not left


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


class Lab:
    """A page of JupyterLab and the folder that its notebooks lie in."""

    def __init__(self, server: Server, page: "Page", folder: Path) -> None:
        self.server, self.page, self.folder = server, page, folder
        self.output = folder / "output"
        self.console: list[str] = []
        page.set_default_timeout(LOAD_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.console.append(f"uncaught: {error}"))

    def _note(self, message: "ConsoleMessage") -> None:
        self.console.append(f"{message.type}: {message.text}")

    def add(self, name: str, kernel: str = "python3", **parameters: Any) -> Path:
        """A copy of a notebook, with these parameters, whose runs leave what they leave below self.output."""
        notebook = load_notebook_node(str(ROOT / "notebooks" / name))
        notebook = parameterize_notebook(notebook, {"output": str(self.output), **parameters})
        notebook.metadata.kernelspec.name = kernel
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    def open(self, path: Path | None = None) -> None:
        """JupyterLab with a notebook whose kernel is ready, or with the launcher; a workspace for each test."""
        place = f"/tree/{path.relative_to(self.server.root)}" if path else ""
        self.page.goto(f"{self.server.url}/lab/workspaces/{self.folder.name}{place}?token={self.server.token}")
        if path:
            self.wait_for_kernel()
        else:
            self.page.locator(".jp-Launcher").wait_for()

    def wait_for_kernel(self) -> None:
        """Until the page is connected to an idle kernel; the circle in the toolbar is empty before that too."""
        self.page.locator("#jp-main-statusbar", has_text=re.compile(r"\| Idle")).wait_for()

    def wait_for_cells(self) -> None:
        """Until no cell is running or waits for its turn."""
        self.wait_for_kernel()
        running = self.page.locator(".jp-InputPrompt", has_text="[*]")
        wait_for(lambda: running.count() == 0)

    def run_all_by_menu(self) -> None:
        self.page.locator('.lm-MenuBar-itemLabel:text-is("Run")').click()
        self.page.locator('.lm-Menu-itemLabel:text-is("Run All Cells")').click()

    def restart_kernel(self) -> None:
        """By the menu, until the new kernel is there."""
        before = self.server.kernels()
        self.page.locator('.lm-MenuBar-itemLabel:text-is("Kernel")').click()
        self.page.locator('.lm-Menu-itemLabel:text-is("Restart Kernel…")').click()
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        wait_for(lambda: not any(process.is_running() for process in before))
        self.wait_for_kernel()

    def run_code(self, source: str) -> None:
        """Run a new cell at the notebook's end, by the keyboard."""
        self.page.locator(".jp-Notebook-footer").click()
        self.page.locator(".jp-Cell.jp-mod-active:focus-within, .jp-Cell.jp-mod-active:focus").first.wait_for()
        self.page.keyboard.press("Enter")
        self.page.locator(".jp-Cell.jp-mod-active .cm-content:focus").wait_for()
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Control+Enter")

    def run_all_by_keyboard(self) -> None:
        """Through the command palette."""
        self.page.keyboard.press("Control+Shift+c")
        self.page.locator(".jp-ModalCommandPalette input:focus").wait_for()
        self.page.keyboard.insert_text("Run All Cells")
        chosen = ".lm-CommandPalette-item.lm-mod-active .lm-CommandPalette-itemLabel"
        self.page.locator(chosen, has_text=re.compile("^Run All Cells$")).wait_for()
        self.page.keyboard.press("Enter")

    def tab_to(self, element: "Locator", most: int = 200) -> None:
        """Press Tab until the element has the focus.

        Raises:
            AssertionError: it is not reached by so many presses.
        """
        for _ in range(most):
            if element.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        seen = self.page.evaluate("document.activeElement.outerHTML.slice(0, 300)")
        raise AssertionError(f"Tab does not reach it; the focus is at {seen}")

    def outputs(self, source: str, kind: str = "") -> "Locator":
        """Outputs of the code cell whose source holds this text; kind is a CSS selector within them."""
        cell = self.page.locator(".jp-CodeCell").filter(has=self.page.locator(".cm-content", has_text=source))
        return cell.locator(f".jp-OutputArea-output {kind}")

    @property
    def errors(self) -> "Locator":
        """Outputs of cells that raised. JupyterLab marks them as stderr, which need not be an error."""
        stderr = self.page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')
        return stderr.filter(has_text=re.compile(r"Traceback \(most recent call last\)|Error: "))

    def look_at(self, element: "Locator") -> str:
        """Scroll to an element, wait until it is drawn, for what lies out of view is not, and return its text."""
        element.scroll_into_view_if_needed()
        wait_for(lambda: element.evaluate("element => element.checkVisibility({contentVisibilityAuto: true})"))
        return element.inner_text()

    def save(self, path: Path) -> nbformat.NotebookNode:
        """Press Ctrl+S and read what then lies on the disk."""
        before = path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        wait_for(lambda: path.stat().st_mtime_ns != before)
        return wait_for(lambda: _read_notebook(path))

    def keep(self, folder: Path) -> None:
        """Screenshot, console and server's log; the screenshot last, for a page that hangs gives none."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "console.log").write_text("\n".join(self.console), encoding="utf-8")
        shutil.copy(self.server.log, folder / "server.log")
        self.page.screenshot(path=folder / "screenshot.png", timeout=30_000)


def _read_notebook(path: Path) -> nbformat.NotebookNode | None:
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, OSError):
        return None
