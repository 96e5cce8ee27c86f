"""The panel: what can be chosen, Start and Stop, what is drawn and how often, and any two runs compared."""

import html
import io
import math
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launch_tools import CPU_ENVIRONMENT, TESTS, gpus, gpus_for_xla, pids_below, read_status, run_folders, wait_for
from PIL import Image as Picture
from synthetic_runs import write_run

from resnet_acc.config import ARMS, RunConfig
from resnet_acc.datasets.mock import make_mock_imagenet
from resnet_acc.files import write_json
from resnet_acc.launch import live, preflight
from resnet_acc.launch.live import LiveRun, Snapshot
from resnet_acc.launch.live_command import command_arguments
from resnet_acc.launch.live_find import list_runs
from resnet_acc.launch.live_ranks import Point, RankState, RunProgress
from resnet_acc.launch.supervisor import RunFailed
from resnet_acc.panel import Panel, attach, front_end
from resnet_acc.panel import view as view_module
from resnet_acc.panel.choices import FOLDER, Choices, Precision
from resnet_acc.panel.controls import Controls
from resnet_acc.panel.curves import LiveFigure
from resnet_acc.panel.form import Form
from resnet_acc.panel.runs import ROWS, RunsBox
from resnet_acc.panel.tables import compare_runs, runs_table
from resnet_acc.panel.view import RunView

LONG = {"FAKE_STEPS": "5000", "FAKE_STEP_S": "0.1"}
SLOW, FAST = "20261201-120000-aaaaaa", "20261201-120100-bbbbbb"


@pytest.fixture(autouse=True)
def _own_folder_and_fake_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Locks of its own for each test; whatever a test leaves running is ended."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("RESNET_ACC_TRAINER", "fake_trainer")
    yield
    for run in live.find_running(tmp_path / "out"):
        run.stop()


@pytest.fixture
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LONG.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a cell displayed: text and pages as dictionaries, pictures as IPython's images."""
    found: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda value, raw=False: found.append(value))
    return found


def choices(tmp_path: Path, environment: dict[str, Any] | None = None, **parameters: Any) -> Choices:
    values = {"data": "synthetic", "output": str(tmp_path / "out"), **parameters}
    return Choices(values, CPU_ENVIRONMENT if environment is None else environment)


def form(tmp_path: Path, environment: dict[str, Any] | None = None, **parameters: Any) -> Form:
    return Form(choices(tmp_path, environment, **parameters), lambda: None)


def arguments_of(made: Form) -> list[str]:
    return shlex.split(made.command.value)[1:]


def size_of(picture: bytes) -> tuple[int, int]:
    return Picture.open(io.BytesIO(picture)).size


def two_runs(tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """Of 100 and 50 ms a step; the faster one is the newer."""
    settings = {"model": "resnet18", "batch_size": 8, "warmup_steps": 2, "log_interval": 2, **options}
    slow = write_run(tmp_path / "out", RunConfig(**settings), [0.1] * 12, run_id=SLOW, started_at=100.0)
    faster = RunConfig(**settings).with_arm("kernel")
    return slow, write_run(tmp_path / "out", faster, [0.05] * 12, run_id=FAST, started_at=200.0)


# What can be chosen


def test_an_arm_that_cannot_run_cannot_be_chosen_and_says_why(tmp_path: Path) -> None:
    errors = {"cxx_compiler": "there is no <g++>"}
    environment = CPU_ENVIRONMENT | {"cxx_compiler": None, "torch_xla": None, "errors": errors}
    made = form(tmp_path, environment, arms="eager,inductor")
    assert {arm: box.disabled for arm, box in made.arms.items()} == {
        "eager": False,
        "kernel": False,
        "inductor": True,
        "torchacc": True,
    }
    notes = {arm: note.value for arm, note in made._arm_notes.items()}
    assert notes["eager"] == notes["kernel"] == ""
    assert "there is no &lt;g++&gt;" in notes["inductor"]
    assert "torchacc on cpu needs torch_xla 2.9" in notes["torchacc"]
    assert made.chosen_arms == ("eager",)
    reasons = preflight.runnable_arms(environment, "cpu")
    assert {option.label: option.reason for option in made._choices.arms()} == reasons
    assert set(reasons) == set(ARMS)


@pytest.mark.parametrize(("count", "offered"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_processes_are_offered_up_to_the_devices(count: int, offered: list[int], tmp_path: Path) -> None:
    made = form(tmp_path, gpus(count))
    assert [value for _, value in made.processes.options] == offered
    assert made.processes.value == 1
    assert made.problem is None


def test_more_processes_than_devices_are_refused_with_the_reason(tmp_path: Path) -> None:
    made = form(tmp_path, gpus(2), processes=3)
    assert [value for _, value in made.processes.options] == [1, 2]
    assert made.problem == "processes: choose one"
    assert "3 cannot be chosen: nproc_per_node is 3 with device cuda, but 2 GPUs" in made._notes["processes"].value
    made.processes.value = 2
    assert made.problem is None
    assert made.config().nproc_per_node == 2


def test_a_choice_takes_back_what_does_not_go_with_it(tmp_path: Path) -> None:
    # GPUs that only the driver sees: torch, built for the CPU, uses none of them, and torchacc both.
    made = form(tmp_path, gpus_for_xla(2), arms="torchacc", processes=2, amp_level="O1", amp_dtype="float16")
    assert made.problem is None
    assert [value for _, value in made.processes.options] == [1, 2]
    made.arms["torchacc"].value = False
    assert made.problem == "arms: choose at least one"
    assert made.command.value == ""
    made.arms["kernel"].value = True
    assert made.problem is None
    assert made.chosen_arms == ("kernel",)
    assert arguments_of(made) == command_arguments(made.config(), ["kernel"])


def test_precision_is_what_the_run_is_told(tmp_path: Path) -> None:
    made = form(tmp_path, amp_level="O1")
    assert made.precision.value == Precision("O1", "auto")
    for precision, options in (
        (Precision("O0", "auto"), []),
        (Precision("O1", "bfloat16"), ["--amp_level=O1", "--amp_dtype=bfloat16"]),
    ):
        made.precision.value = precision
        assert [text for text in arguments_of(made) if "amp" in text] == options
        assert (made.config().amp_level, made.config().amp_dtype) == (precision.amp_level, precision.amp_dtype)


def test_mock_data_is_offered_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "project_root", lambda: tmp_path)
    made = form(tmp_path, data="mock", batch_size=4)
    assert [label for label, _ in made.data.options] == ["synthetic", "a folder"]
    assert "resnet-acc data mock" in made._notes["data"].value
    assert made.problem == "data: choose one"
    folder = tmp_path / "data" / "mock_imagenet"
    counts = {"classes": 2, "images_per_class": 2, "val_images_per_class": 1}
    make_mock_imagenet(folder, **counts, size=32, workers=1, progress=False)
    made.check_again()
    assert [label for label, _ in made.data.options] == ["mock", "synthetic", "a folder"]
    made.data.value = "mock"
    assert made.problem is None
    made.batch.value = 8
    assert made.problem == "4 images < batch 8 x 1 processes: 0 steps; use --batch_size=4 or less, or more images"


def test_a_folder_is_checked_beside_the_kernels_own_thread(tmp_path: Path, mock_data: Path) -> None:
    made = form(tmp_path, batch_size=4)
    made.data.value = FOLDER
    assert made.problem == "image folder: name one that holds train/<class>/<image>"
    made.folder.value = str(tmp_path / "<b>no")
    wait_for(lambda: made.problem and "is no folder" in made.problem)
    assert "&lt;b&gt;no" in made.message.value
    assert "<b>no" not in made.message.value.replace("<b>Cannot start:</b>", "")
    made.folder.value = str(mock_data)
    wait_for(lambda: made.problem is None and made.message.value == "")
    assert f"--data={mock_data}" in arguments_of(made)


def test_the_last_folder_counts_however_long_an_earlier_one_takes(
    tmp_path: Path, mock_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = form(tmp_path, batch_size=4)
    made.data.value = FOLDER
    go, check = threading.Event(), made._choices.data_problem

    def slow(config: RunConfig) -> str | None:
        if config.data == str(tmp_path):
            go.wait(60)
        return check(config)

    monkeypatch.setattr(made._choices, "data_problem", slow)
    made.folder.value = str(tmp_path)  # holds no train/
    made.folder.value = str(mock_data)
    assert made.problem is None
    go.set()
    wait_for(lambda: made.message.value == "")
    wait_for(lambda: not made._counting.locked())
    assert made.problem is None


def test_the_command_is_the_run_and_is_only_there_to_be_copied(tmp_path: Path) -> None:
    made = form(tmp_path, arms="eager,kernel", max_steps=8)
    assert arguments_of(made) == command_arguments(made.config(), ["eager", "kernel"])
    made.arms["eager"].value = False
    made.batch.value = 24
    wanted = command_arguments(made.config(), ["kernel"])
    assert arguments_of(made) == wanted
    assert {"--kernel-opt", "--batch_size=24", "--max_steps=8"} <= set(wanted)
    before = made.command.value
    made.command.value = "rm -r output"
    assert made.command.value == before
    made.batch.value = 0
    assert made.problem == "batch_size is 0; give at least 1"
    assert made.command.value == ""


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"arms": "eager,fast"}, "'fast'"),
        ({"arms": " , "}, "give some of eager,kernel"),
        ({"processes": 0}, "nproc_per_node is 0"),
        ({"preset": "slow"}, "'slow'"),
        ({"batch_size": "64"}, "'64'"),
        ({"bacth_size": 64}, "did you mean batch_size"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        Panel({"output": str(tmp_path), **parameters}, CPU_ENVIRONMENT)


# Start and Stop


@pytest.mark.usefixtures("_long")
def test_clicks_on_start_give_one_run_that_another_panel_shows_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pids").mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    panel = Controls(choices(tmp_path, processes=2))
    assert panel.view.stop.disabled
    panel.start.click()
    panel.start.click()
    assert "not started:" in panel.said.value
    assert panel.start.disabled
    assert not panel.view.stop.disabled
    # As after a restart of the kernel, before the run has a folder:
    early = Controls(choices(tmp_path, batch_size=64))
    assert early.start.disabled
    early.close()
    wait_for(lambda: panel.view.progress.value > 0 and panel.view.curves.value)
    (run_dir,) = run_folders(tmp_path / "out")
    assert "5000" in panel.view.progress.description
    assert panel.view.ranks.value.count("<tr>") == 3
    pids_below(tmp_path / "pids", 2)

    other = Controls(choices(tmp_path, batch_size=64))
    assert run_dir.name in other.said.value
    assert other.start.disabled
    other.on_start()
    assert "Stop it first" in other.said.value
    other.view.stop.click()
    other.view.stop.click()
    wait_for(lambda: other.view.snapshot.ended and panel.view.snapshot.ended)
    assert read_status(run_dir)["status"] == "interrupted"
    for each in (panel, other):
        wait_for(lambda each=each: not each.start.disabled)  # its thread shows the end part by part
        assert "interrupted" in each.view.status.value
        assert each.view.stop.disabled
        assert "interrupted" in each.runs.rows.children[0].description
    assert run_folders(tmp_path / "out") == [run_dir]


def test_a_run_on_another_machine_is_shown_and_keeps_nobody_from_starting(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "out", RunConfig(), [0.1] * 4, status="running", status_values={"host": "node<7>"})
    panel = Controls(choices(tmp_path))
    assert panel.view.live is None
    (box,) = panel.runs.rows.children
    assert "running on node<7>" in box.description
    box.value = True
    panel.runs.watch.click()
    assert "running on node&lt;7&gt;" in panel.view.status.value
    assert not panel.start.disabled
    panel.view.stop.click()
    wait_for(lambda: "stop it there" in panel.view.lines.value)
    panel.close()
    assert read_status(run_dir)["status"] == "running"


def test_a_start_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Controls(choices(tmp_path))

    def fails(*_: Any) -> LiveRun:
        raise OSError("no <process> can be made")

    monkeypatch.setattr(live, "start", fails)
    panel.start.click()
    assert "not started: no &lt;process&gt; can be made" in panel.said.value
    assert not panel.start.disabled


# What is drawn, and how often


class Clock:
    """Stands in for the time module in the view."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Scripted:
    """Stands in for a LiveRun: says one snapshot after the other, and the last one for ever."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = list(snapshots)
        self.looks = 0

    def snapshot(self) -> Snapshot:
        self.looks += 1
        return self._snapshots.pop(0) if len(self._snapshots) > 1 else self._snapshots[0]


def rank(number: int, step: int, loss: float = 2.0) -> RankState:
    curve = tuple(Point(at, 100.0 + number, loss) for at in range(1, step + 1))
    return RankState(number, step, 100, 100.0 + number, None, loss, 30.0, f"step {step}/100", curve)


def running(step: int) -> Snapshot:
    return Snapshot("running", ranks=(rank(0, step), rank(1, step)), step=step, total_steps=100)


def count_messages(view: RunView) -> list[str]:
    """Names of what changed: each change is one message to the page."""
    changed: list[str] = []
    for widget in (view.status, view.progress, view.ranks, view.lines, view.curves, view.stop):
        widget.observe(lambda change: changed.append(change["name"]))
    return changed


def test_nothing_is_sent_where_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "POLL_SECONDS", 0.005)
    view, run = RunView(), Scripted(running(5))
    view.watch(run)
    wait_for(lambda: view.curves.value)
    changed = count_messages(view)
    looks = run.looks
    wait_for(lambda: run.looks > looks + 20)
    view.close()
    assert changed == []
    assert view.progress.value == pytest.approx(0.05)


def test_curves_are_drawn_at_most_once_in_twenty_times_what_drawing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(view_module, "time", clock)

    def draw(figure: LiveFigure, ranks: tuple[RankState, ...]) -> bytes:
        clock.now += 0.5  # a busy machine
        drawn.append(clock.now)
        return b"picture %d" % len(drawn)

    drawn: list[float] = []
    monkeypatch.setattr(LiveFigure, "draw", draw)
    view = RunView()
    for step in range(1, 101):
        clock.now += 1.0
        view._show(running(step))
        view._show_curves()
    assert len(drawn) == 10
    assert min(later - sooner for sooner, later in zip(drawn, drawn[1:], strict=False)) >= 20 * 0.5
    view.draw.value = False
    assert view.curves.layout.display == "none"
    view._show(Snapshot("finished", ranks=(rank(0, 100),), step=100, total_steps=100, ended=True))
    assert len(drawn) == 10
    view.draw.value = True  # the end is drawn at once, however lately the last one was
    assert len(drawn) == 11


def test_a_view_looks_no_more_once_it_is_closed_or_shows_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "POLL_SECONDS", 0.005)
    before = threading.active_count()
    view, first = RunView(), Scripted(running(1))
    view.watch(first)
    view.watch(Scripted(running(2), Snapshot("finished", ended=True)))
    wait_for(lambda: view.snapshot is not None and view.snapshot.ended)
    wait_for(lambda: threading.active_count() == before)
    assert not view.is_live
    assert view.stop.disabled


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (
            Snapshot("failed", "rank 1 failed: <b>gone", last_lines=("  <i>line",), ended=True),
            "rank 1 failed: &lt;b&gt;gone",
        ),
        (
            Snapshot("refused", "nproc_per_node is 9", last_lines=("<i>line",), ended=True),
            "refused: nproc_per_node is 9",
        ),
    ],
)
def test_a_bad_end_is_shown_with_its_reason_and_last_lines(snapshot: Snapshot, words: str) -> None:
    changes: list[str] = []
    view = RunView(lambda: changes.append("changed"))
    view.watch(Scripted(snapshot))
    assert words in view.status.value
    assert "&lt;i&gt;line" in view.lines.value
    assert view.progress.bar_style == "danger"
    assert changes == ["changed"]
    assert view.stop.description == "Stop"


def test_a_run_that_cannot_be_read_for_a_while_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "POLL_SECONDS", 0.005)
    view, run = RunView(), Scripted(running(1), running(2))
    snapshot, broken = run.snapshot, threading.Event()

    def look() -> Snapshot:
        if broken.is_set():
            raise OSError("stale file handle")
        return snapshot()

    run.snapshot = look  # type: ignore[method-assign]
    view.watch(run)
    wait_for(lambda: view.progress.value == pytest.approx(0.02))
    broken.set()
    wait_for(lambda: "stale file handle" in view.status.value)
    broken.clear()
    wait_for(lambda: "stale file handle" not in view.status.value)
    view.close()


def test_curves_hold_every_rank_and_leave_out_what_is_not_finite() -> None:
    figure = LiveFigure()
    losses = [2.0, math.nan, 1.0]
    curve = tuple(Point(step, None if step == 1 else 100.0, loss) for step, loss in enumerate(losses, 1))
    ranks = [RankState(number, 3, 3, 100.0, None, 1.0, None, "", curve) for number in range(3)]
    assert size_of(figure.draw(ranks)) == (810, 252)
    rate, loss = figure._axes
    assert [list(line.get_xdata()) for line in rate.lines] == [[2, 3]] * 3
    assert [list(line.get_ydata()) for line in loss.lines] == [[2.0, 1.0]] * 3
    assert [text.get_text() for text in rate.get_legend().get_texts()] == ["rank 0", "rank 1", "rank 2"]
    figure.draw([rank(number, 2) for number in range(40)])
    assert len(rate.lines) == 16
    assert "first 16 of 40" in rate.get_title()
    figure.draw(ranks[:1])
    assert len(rate.lines) == 1


# Runs on disk


def runs_box(tmp_path: Path, watch: Callable[[Path], None] = lambda run_dir: None) -> RunsBox:
    return RunsBox(tmp_path / "out", watch, lambda: None)


def test_any_two_marked_runs_are_compared(tmp_path: Path) -> None:
    watched: list[Path] = []
    slow, fast = two_runs(tmp_path)
    runs = runs_box(tmp_path, watched.append)
    assert [box.description.split()[0] for box in runs.rows.children] == [FAST, SLOW]
    assert runs.more.disabled
    runs.compare.click()
    assert "0 runs are marked; mark two" in runs.message.value
    runs.rows.children[0].value = True
    runs.watch.click()
    assert watched == [fast]
    runs.rows.children[1].value = True
    runs.watch.click()
    assert "2 runs are marked; mark one" in runs.message.value
    runs.compare.click()
    assert runs.message.value == ""
    assert "2.000 times its images/s" in runs.comparison.value
    assert size_of(runs.picture.value)[0] > 300
    assert runs.picture.layout.display is None
    (slow / "0" / "metrics.jsonl").unlink()
    (slow / "0" / "log").unlink()
    runs.compare.click()  # a run of which nothing is left is no reason to stop
    assert runs.comparison.value or "cannot be compared" in runs.message.value


def test_older_runs_come_at_a_press_and_marks_stay(tmp_path: Path) -> None:
    for number in range(ROWS + 3):
        config = RunConfig(model="resnet18")
        name = f"20261201-1200{number:02d}-cccccc"
        write_run(tmp_path / "out", config, [0.1], run_id=name, started_at=float(number))
    runs = runs_box(tmp_path)
    assert len(runs.rows.children) == ROWS
    runs.rows.children[1].value = True
    marked = runs.marked
    runs.more.click()
    assert len(runs.rows.children) == ROWS + 3
    assert runs.more.disabled
    newest = write_run(tmp_path / "out", RunConfig(), [0.1], run_id="20261202-120000-dddddd", started_at=99.0)
    runs.again.click()
    assert runs.rows.children[0].description.startswith(newest.name)
    assert runs.marked == marked


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    (note,) = runs_box(tmp_path).rows.children
    assert note.value == "no run yet"


def test_a_comparison_has_both_rates_their_ratio_and_what_else_differs(tmp_path: Path) -> None:
    slow, fast = two_runs(tmp_path, batch_size=16)
    found = compare_runs(fast, slow)
    rows = {row[0]: row for row in found.table.rows}
    assert rows[SLOW][4].startswith("160.0")  # 16 images in 0.1 s
    assert rows[FAST][4].startswith("320.0")
    assert "2.000 times its images/s" in found.lines[0]
    assert "They differ in kernel_opt: True and False." in found.lines
    assert any("was not measured" in line for line in found.lines)
    assert size_of(found.picture)[0] > 300
    with pytest.raises(ValueError, match=f"run {SLOW} was chosen twice"):
        compare_runs(slow, slow.parent / ".." / slow.parent.name / slow.name)


def test_runs_that_did_not_finish_may_be_compared_and_say_so(tmp_path: Path) -> None:
    slow, fast = two_runs(tmp_path)
    reason = "rank 0 failed: <script>"
    status = {"status": "failed", "reason": reason}
    failed = write_run(tmp_path / "out", RunConfig(), [0.1] * 3, run_id="f", status="failed", status_values=status)
    empty = write_run(tmp_path / "out", RunConfig(), [], run_id="e", ranks=(), status="failed", status_values=status)
    for bad in (failed, empty):
        found = compare_runs(fast, bad)
        assert reason in found.to_text()
        assert "<script>" not in found.to_html()
        assert "&lt;script&gt;" in found.to_html()
        assert size_of(found.picture)[0] > 300


def test_the_table_of_runs_has_their_last_numbers_and_keeps_what_failed(tmp_path: Path) -> None:
    slow, _ = two_runs(tmp_path)
    long = "rank 0 failed: " + "x" * 300
    write_json(slow / "status.json", {"status": "failed", "reason": long, "started_at": 100.0})
    table, runs = runs_table(list_runs(tmp_path / "out"), tmp_path / "out")
    assert [row[0] for row in table.rows] == [FAST, SLOW]
    assert table.rows[0][1:7] == ("kernel", "1", "resnet18 cpu_O0_bs8", "finished", "12/12", "160.0")
    assert float(table.rows[0][7]) == pytest.approx(2.3 * 0.99**10.5, abs=0.01)  # the mean of the last two steps
    assert table.rows[1][4] == "failed"
    assert len(table.rows[1][8]) == 160
    assert [run.run_id for run in runs] == [FAST, SLOW]


# Without widgets


def test_headless_the_panel_is_a_table_and_a_picture(tmp_path: Path, shown: list[Any]) -> None:
    parameters = {"output": str(tmp_path / "out"), "data": "synthetic", "start": True, "wait": False, "stop": False}
    panel = Panel(parameters, CPU_ENVIRONMENT)
    panel.show()
    (empty,) = shown
    assert "no run below" in empty["text/plain"]
    assert panel.finished == []
    with pytest.raises(ValueError, match="0 runs have finished below .*; two are needed"):
        panel.compare()
    slow, fast = two_runs(tmp_path)
    assert panel.finished == [fast, slow]
    shown.clear()
    panel.show()
    table, picture = shown
    for name in (SLOW, FAST, "finished", "80.0", "160.0"):
        assert name in table["text/plain"]
        assert name in table["text/html"]
    assert size_of(picture.data)[0] > 300
    shown.clear()
    found = panel.compare()
    assert shown[0]["text/plain"] == found.to_text()
    assert shown[1].data == found.picture
    assert panel.compare(SLOW, FAST[:-3]).lines[0].startswith("eager")
    assert "0.500 times its images/s" in panel.compare(SLOW, FAST).lines[0]


def test_what_a_panel_says_of_the_machine_is_what_preflight_says(tmp_path: Path) -> None:
    environment = CPU_ENVIRONMENT | {"torch_xla": None}
    text = Panel({"output": str(tmp_path), "data": "/a/<b>*_x_*"}, environment).describe()
    assert "data: /a/<b>*_x_*" in html.unescape(text)
    assert not set("<>*") & set(text)
    assert "- `eager`: can run" in text
    why = preflight.runnable_arms(environment, "cpu")["torchacc"]
    assert f"- `torchacc`: cannot run: {why}" in html.unescape(text)


def test_headless_attach_shows_a_run_as_it_stands(tmp_path: Path, shown: list[Any]) -> None:
    slow, _ = two_runs(tmp_path, nproc_per_node=2)
    run = attach(SLOW, tmp_path / "out")
    assert run.run_dir == slow
    page, picture = shown
    assert page["text/plain"].splitlines()[0] == run.snapshot().line
    assert [line.split()[:2] for line in page["text/plain"].splitlines()[2:]] == [["0", "12/12"], ["1", "12/12"]]
    assert size_of(picture.data) == (810, 252)
    with pytest.raises(ValueError, match="run 'nothing' is no folder"):
        attach("nothing", tmp_path / "out")


def test_start_without_a_button_waits_and_fails_as_the_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = Panel({"output": str(tmp_path / "out"), "data": "synthetic"}, CPU_ENVIRONMENT)
    monkeypatch.setenv("FAKE_FAULT", "0:raise")
    with pytest.raises(RunFailed, match="rank 0 failed: FileNotFoundError: /data/train/cat/17.JPEG is gone") as caught:
        panel.start(wait=True)
    assert [caught.value.run_dir] == run_folders(tmp_path / "out")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"$ {panel.command}"
    assert said[1] == f"run folder: {caught.value.run_dir}"
    broken = Panel({"output": str(tmp_path / "out"), "data": "/no/such"}, CPU_ENVIRONMENT)
    with pytest.raises(ValueError, match="/no/such"):
        broken.start()
    assert len(run_folders(tmp_path / "out")) == 1


@pytest.mark.usefixtures("_long")
def test_an_interrupt_of_the_cell_ends_the_waiting_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = Panel({"output": str(tmp_path / "out"), "data": "synthetic"}, CPU_ENVIRONMENT)
    run = panel.start()
    wait_for(lambda: run.snapshot().step > 1)

    def interrupted(*_: Any, **__: Any) -> Snapshot:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveRun, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        panel.start(wait=True)
    said = capsys.readouterr().out
    assert "this run goes on already, and is not started again" in said
    assert f"attach({run.run_dir.name!r})" in said
    assert run.snapshot().status == "running"
    run.stop()


@pytest.mark.parametrize(
    ("metadata", "widgets"), [({"cellId": "a1"}, True), ({"cell_id": "a1"}, True), ({}, False), (None, False)]
)
def test_widgets_are_for_a_front_end_that_names_its_cell(
    metadata: dict[str, str] | None, widgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        def get_parent(self) -> dict[str, Any] | None:
            return None if metadata is None else {"metadata": metadata}

    class Shell:
        kernel = Kernel()

    monkeypatch.setattr("IPython.get_ipython", lambda: Shell())
    assert front_end.widgets_work(None) is widgets
    assert front_end.widgets_work(True) is False
    assert front_end.widgets_work(False) is True


def test_a_cell_that_is_run_again_ends_what_it_showed_before(
    tmp_path: Path, shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnet_acc.panel.controls.cell_id", lambda: "a1")
    write_run(tmp_path / "out", RunConfig(), [0.1] * 4, status="running", run_id="20261201-120000-eeeeee")
    before = threading.active_count()
    for _ in range(3):
        attach(None, tmp_path / "out", headless=False)
    assert len(shown) == 3
    wait_for(lambda: threading.active_count() == before + 1)
    panel = Panel({"output": str(tmp_path / "out"), "data": "synthetic", "headless": False}, CPU_ENVIRONMENT)
    panel.show()
    panel.show()
    wait_for(lambda: threading.active_count() == before + 1)
    panel.close()
    wait_for(lambda: threading.active_count() == before)
    (run,) = list_runs(tmp_path / "out")
    write_json(run.run_dir / "status.json", {"status": "finished"})


def test_a_bare_rank_folder_has_a_curve(tmp_path: Path) -> None:
    slow, _ = two_runs(tmp_path)
    (state,) = RunProgress(slow).update()
    assert [point.images_per_s for point in state.curve[1:]] == [pytest.approx(80.0)] * 6
