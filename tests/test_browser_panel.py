"""The panel in a real browser: start, live update, reload, attach and stop, by the mouse and by the keyboard alone."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from browser_tools import Lab
from launch_tools import processes_with, read_status, run_folders, wait_for
from synthetic_runs import write_run

from resnet_acc.config import ARMS, RunConfig
from resnet_acc.panel.choices import PRECISIONS

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytest_plugins = ["browser_fixtures"]

PARAMETERS = {"preset": "quick", "arms": "eager", "processes": 1, "batch_size": 8, "data": "synthetic"}
NOTEBOOK = "03_explore.ipynb"
ATTACH = "from resnet_acc.panel import attach; run = attach(output={output!r})"


def step_of(view: "Locator") -> int:
    """The step that the progress bar says."""
    found = re.search(r"(\d+)/6000", view.locator(".ra-progress").inner_text())
    return int(found[1]) if found else 0


def picture_of(view: "Locator") -> str:
    """What is drawn, once it is drawn."""
    curves = view.locator("img.ra-curves")
    wait_for(lambda: curves.is_visible() and curves.evaluate("image => image.naturalWidth") > 300)
    return str(curves.evaluate("image => image.src"))


def wait_for_later_steps(view: "Locator") -> None:
    """Until progress and curves have moved on by themselves."""
    step, picture = step_of(view), picture_of(view)
    wait_for(lambda: step_of(view) > step and picture_of(view) != picture)


def what_cannot_be_chosen_says_why(panel: "Locator") -> None:
    """Whatever this machine can run: each choice is there to be taken, or a reason stands in its place."""
    offered = panel.locator(".ra-precision button").all_inner_texts()
    reasons = panel.locator(".ra-reason").all_inner_texts()
    for label in (precision.label for precision in PRECISIONS):
        refused = any(reason.startswith(f"{label} cannot be chosen: ") for reason in reasons)
        assert (label in offered) != refused
    for arm in ARMS:
        row = panel.locator(".widget-hbox").filter(has=panel.page.locator(f".ra-arm-{arm}"))
        assert row.locator("input").is_enabled() != ("cannot run: " in row.inner_text())


def has_ended(lab: Lab, run_dir: Path) -> None:
    """Nothing of the run lives, and its status says what became of it."""
    lab.server.wait_until_no_run_is_left()
    assert not processes_with(run_dir.name)
    assert read_status(run_dir)["status"] == "interrupted"


def test_a_run_is_started_watched_found_again_and_stopped(lab: Lab) -> None:
    """The run's children are deaf to SIGTERM and in sessions of their own."""
    path = lab.add(NOTEBOOK, "fake", **PARAMETERS)
    lab.open(path)
    lab.run_all_by_menu()
    panel = lab.page.locator(".ra-panel")
    start = panel.locator("button.ra-start:enabled")
    start.or_(lab.errors).first.wait_for()
    lab.wait_for_cells()
    assert lab.errors.all_text_contents() == []
    assert not panel.locator("button.ra-stop").is_enabled()
    what_cannot_be_chosen_says_why(panel)

    start.dblclick()
    panel.locator(".ra-said", has_text=re.compile("not started")).wait_for()
    wait_for(lambda: step_of(panel) > 0)
    (run_dir,) = run_folders(lab.output)
    assert len([line for line in lab.server.runs() if "launch_single_task" in line]) == 1
    wait_for_later_steps(panel)
    assert not panel.locator("button.ra-start").is_enabled()
    assert re.search(r"images/s", panel.locator(".ra-ranks").inner_text())

    lab.save(path)
    lab.page.reload()
    lab.wait_for_kernel()
    panel.wait_for()
    wait_for_later_steps(panel)

    lab.restart_kernel()
    assert read_status(run_dir)["status"] == "running"
    lab.run_code(ATTACH.format(output=str(lab.output)))
    attached = lab.page.locator(".ra-attached")
    attached.or_(lab.errors).first.wait_for()
    wait_for_later_steps(attached)
    attached.locator("button.ra-stop:enabled").click()
    has_ended(lab, run_dir)
    assert run_folders(lab.output) == [run_dir]
    attached.locator(".ra-status", has_text="interrupted").wait_for()


def test_the_keyboard_alone_does_all_of_it(lab: Lab) -> None:
    """Cells, choices, the command, Start, Stop and a comparison, and the mouse is never touched."""
    page = lab.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=lab.server.url)
    path = lab.add(NOTEBOOK, "fake", **PARAMETERS)
    old = []
    for number, step_time_s in enumerate((0.2, 0.1)):
        config = RunConfig(model="resnet18", nproc_per_node=1, batch_size=8, warmup_steps=2, log_interval=2)
        old += [write_run(lab.output, config, [step_time_s] * 12, run_id=f"20261201-12000{number}-000000")]
    lab.open(path)
    lab.run_all_by_keyboard()
    panel = page.locator(".ra-panel")
    panel.locator("button.ra-start:enabled").or_(lab.errors).first.wait_for()
    lab.wait_for_cells()
    assert lab.errors.all_text_contents() == []

    command = panel.locator(".ra-command textarea")
    lab.tab_to(panel.locator(".ra-batch input"))
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("16")
    lab.tab_to(command)
    wait_for(lambda: "--batch_size=16" in command.input_value())
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    copied = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert copied == shlex.split(command.input_value())

    lab.tab_to(panel.locator("button.ra-start"))
    page.keyboard.press("Space")
    wait_for(lambda: step_of(panel) > 0)
    (run_dir,) = [run_dir for run_dir in run_folders(lab.output) if run_dir not in old]
    assert shlex.split((run_dir / "command.txt").read_text())[-len(copied) + 1 :] == copied[1:]
    assert "_bs16" in str(run_dir)
    lab.tab_to(panel.locator("button.ra-stop"))
    page.keyboard.press("Space")
    has_ended(lab, run_dir)
    panel.locator(".ra-status", has_text="interrupted").wait_for()

    for run in old:
        lab.tab_to(panel.locator(".ra-run", has_text=run.name).locator("input"))
        page.keyboard.press("Space")
    lab.tab_to(panel.locator("button.ra-compare"))
    page.keyboard.press("Space")
    comparison = panel.locator(".ra-comparison table")
    comparison.wait_for()
    assert [run.name in comparison.inner_text() for run in old] == [True, True]
    assert "2.00" in panel.locator(".ra-comparison").inner_text()
    picture = panel.locator("img.ra-picture")
    wait_for(lambda: picture.is_visible() and picture.evaluate("image => image.naturalWidth") > 300)
