"""Notebook 01 in a real browser: its cells run to the figure, and a cell that is interrupted leaves nothing behind."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from browser_tools import Lab
from launch_tools import processes_with, read_status, run_folders

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ["browser_fixtures"]

TINY: dict[str, Any] = {"preset": "quick", "max_steps": 8, "batch_size": 8, "arms": "eager", "processes": "1"}
FIRST = 'walk.launch("eager", 1)'
AGAIN = f"again = {FIRST}"
PLOT = "plot(title, label, api_data)"


def press_stop_button(page: "Page") -> None:
    page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="interrupt"]').click()


def press_i_twice(page: "Page") -> None:
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    page.keyboard.press("i")


def test_all_cells_run_to_the_figure(lab: Lab, mock_data: Path) -> None:
    path = lab.add("01_resnet50.ipynb", **TINY, data=str(mock_data))
    lab.open(path)
    lab.run_all_by_menu()
    lab.outputs("walk.report()").or_(lab.errors).first.wait_for()
    lab.wait_for_cells()
    assert lab.errors.all_text_contents() == []
    figure = lab.outputs(PLOT, "img")
    assert figure.count() == 1
    lab.look_at(figure)
    assert figure.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300

    cells = [cell for cell in lab.save(path).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert [cell.source for cell in cells for output in cell.outputs if output.output_type == "error"] == []
    assert [(run_dir.parent.name, read_status(run_dir)["status"]) for run_dir in run_folders(lab.output)] == [
        ("eager_x1", "finished"),
    ]
    assert lab.server.runs() == []


def test_an_interrupted_cell_leaves_no_process(lab: Lab) -> None:
    """By the toolbar, then by the keyboard. The children of the ranks are deaf to SIGTERM, in sessions of their own."""
    path = lab.add("01_resnet50.ipynb", "fake", **TINY, data="synthetic")
    lab.open(path)
    lab.run_all_by_menu()
    first = interrupt(lab, press_stop_button, [])
    assert "KeyboardInterrupt" in lab.look_at(lab.errors.first)
    launches = [cell for cell in lab.save(path).cells if cell.source.startswith("walk.launch")]
    assert [cell.execution_count is not None for cell in launches] == [True] + [False] * (len(launches) - 1)

    lab.run_code(AGAIN)
    interrupt(lab, press_i_twice, [first])


def interrupt(lab: Lab, press: "Callable[[Page], None]", before: list[Path]) -> Path:
    """Interrupt the cell that trains, once its run is at work, and return the run's folder."""
    cell = lab.outputs(AGAIN if before else FIRST).filter(has_text=re.compile(r"step \d+/"))
    cell.or_(lab.errors.nth(len(before))).first.wait_for()
    (run_dir,) = set(run_folders(lab.output)) - set(before)
    assert read_status(run_dir)["status"] == "running"
    assert processes_with(run_dir.name)
    press(lab.page)
    lab.server.wait_until_no_run_is_left()
    assert not processes_with(run_dir.name)
    assert read_status(run_dir)["status"] == "interrupted"
    lab.errors.nth(len(before)).wait_for()
    lab.wait_for_cells()
    assert set(run_folders(lab.output)) == {run_dir, *before}
    return run_dir
