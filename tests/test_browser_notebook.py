"""Notebook 01 in a real browser: its cells run to the figure, and a cell that is interrupted leaves nothing behind."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_tools import Lab
from launch_tools import processes_with, read_status, run_folders

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest_plugins = ["browser_fixtures"]

TINY: dict[str, Any] = {"preset": "quick", "max_steps": 8, "batch_size": 8, "arms": "eager,kernel", "processes": "1"}
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
        ("kernel_x1", "finished"),
    ]
    assert lab.server.runs() == []


@pytest.mark.parametrize(
    ("kernel", "interrupt"), [("python3", press_stop_button), ("fake", press_i_twice)], ids=["real-button", "deaf-keys"]
)
def test_an_interrupted_cell_leaves_no_process(lab: Lab, kernel: str, interrupt: "Callable[[Page], None]") -> None:
    """By the toolbar with a real training; by the keyboard with ranks whose children are deaf to SIGTERM."""
    path = lab.add("01_resnet50.ipynb", kernel, **TINY | {"max_steps": 100_000}, data="synthetic")
    lab.open(path)
    lab.run_all_by_menu()
    cell = lab.outputs('walk.launch("eager", 1)').filter(has_text=re.compile(r"step \d+/"))
    cell.or_(lab.errors).first.wait_for()
    (run_dir,) = run_folders(lab.output)
    assert read_status(run_dir)["status"] == "running"
    assert processes_with(run_dir.name)

    interrupt(lab.page)
    lab.server.wait_until_no_run_is_left()
    assert not processes_with(run_dir.name)
    lab.errors.first.wait_for()
    assert "KeyboardInterrupt" in lab.look_at(lab.errors.first)
    assert read_status(run_dir)["status"] == "interrupted"
    lab.wait_for_cells()
    assert run_folders(lab.output) == [run_dir]
    launches = [cell for cell in lab.save(path).cells if cell.source.startswith("walk.launch")]
    assert [cell.execution_count is not None for cell in launches] == [True] + [False] * (len(launches) - 1)
