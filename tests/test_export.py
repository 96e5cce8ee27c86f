"""resnet-acc export: runs as CSV, Parquet and TensorBoard's event files, read back by other readers; what is chosen."""

import csv
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from synthetic_runs import write_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_parser import config_of
from typer.testing import CliRunner

from resnet_acc import cli
from resnet_acc.files import write_json
from resnet_acc.results import export as exporting
from resnet_acc.results.export import export
from resnet_acc.results.export_tables import RUNS, STEPS, VALIDATIONS, make_tables
from resnet_acc.results.runs import load_run
from resnet_acc.results.selection import select

GOOD, BAD, GOING = "20261201-115300-000001", "20261201-115300-000002", "20261201-115300-000003"


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A good run of two ranks, a failed one, and one that never got a status beyond running."""
    output = tmp_path / "output"
    write_run(
        output,
        config_of(nproc_per_node=2, warmup_steps=2, log_interval=2),
        [1.0, 0.2, 0.1, 0.1, 0.1, 0.1],
        [2.0, 2.0, math.nan, 1.0, 1.0, 0.5],
        run_id=GOOD,
        validation={"images": 100, "loss": 1.25, "acc1": 41.0, "acc5": 88.0},
    )
    failed = {"reason": "out of memory", "failed_rank": 0, "ended_at": 1_796_000_009.0}
    write_run(output, config_of().with_arm("kernel"), [0.1] * 5, run_id=BAD, status="failed", status_values=failed)
    gone = {"pid": 2**31 - 2}
    write_run(output, config_of().with_arm("inductor"), [], run_id=GOING, status="running", status_values=gone)
    return output


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_has_a_row_for_each_run_with_its_status_and_numbers(output: Path, tmp_path: Path) -> None:
    done = invoke("export", output, "--format", "csv", "--to", tmp_path / "to")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "to").iterdir()} == {"runs.csv", "steps.csv", "validations.csv"}
    rows = {row["run_id"]: row for row in read_csv(tmp_path / "to" / "runs.csv")}
    assert list(rows[GOOD]) == list(RUNS)
    assert {name: (row["status"], row["is_result"]) for name, row in rows.items()} == {
        GOOD: ("finished", "true"),
        BAD: ("failed", "false"),
        GOING: ("interrupted", "false"),
    }
    assert (rows[BAD]["reason"], rows[BAD]["failed_rank"]) == ("out of memory", "0")
    assert "marked as no result" in done.output
    assert "out of memory" in done.output
    good = rows[GOOD]
    # Steps 3 to 6 of 0.1 s are timed; a step has 64 images of each of two processes.
    assert float(good["images_per_s"]) == pytest.approx(2 * 64 / 0.1)
    assert float(good["images_per_s_per_process"]) == pytest.approx(64 / 0.1)
    assert (good["timed_steps"], good["global_batch_size"], good["ranks_present"]) == ("4", "128", "2")
    assert float(good["validation_acc1_percent"]) == 41.0
    assert good["config_amp_level"] == config_of().amp_level
    assert (good["env_torch_version"], good["env_python"], good["env_torch_xla_version"]) == ("2.9.1", "3.11.0", "")
    assert rows[GOING]["images_per_s"] == ""


def test_steps_are_those_of_every_rank_and_what_is_no_number_stays_apart(output: Path, tmp_path: Path) -> None:
    export([load_run(run) for run in select([str(output)]).folders], "csv", tmp_path / "to")
    rows = [row for row in read_csv(tmp_path / "to" / "steps.csv") if row["run_id"] == GOOD]
    assert [(row["rank"], row["step"], row["steps"]) for row in rows] == [
        (rank, step, steps) for rank in "01" for step, steps in (("1", "1"), ("2", "1"), ("4", "2"), ("6", "2"))
    ]
    assert [row["warmup"] for row in rows[:4]] == ["true", "true", "false", "false"]
    assert [row["timed"] for row in rows[:4]] == ["false", "false", "true", "true"]
    assert [row["loss"] for row in rows[:4]] == ["2.0", "2.0", "nan", "0.75"]
    assert rows[0]["loss_scale"] == ""
    assert float(rows[2]["images"]) == 256
    assert float(rows[2]["images_per_s"]) == pytest.approx(1280.0)
    assert float(rows[0]["time_unix_s"]) > 1.6e9
    assert all(row["is_result"] == "true" for row in rows)
    others = [row for row in read_csv(tmp_path / "to" / "steps.csv") if row["run_id"] == BAD]
    assert others
    assert {(row["status"], row["is_result"]) for row in others} == {("failed", "false")}
    (first, second) = read_csv(tmp_path / "to" / "validations.csv")
    assert (first["rank"], second["rank"], first["acc1_percent"], first["loss"]) == ("0", "1", "41.0", "1.25")


def test_parquet_has_the_same_schema_whatever_the_rows_hold(output: Path, tmp_path: Path) -> None:
    runs = {run.name: run for run in select([str(output)]).folders}
    export([load_run(run) for run in runs.values()], "parquet", tmp_path / "all")
    export([load_run(runs[GOING])], "parquet", tmp_path / "one")
    for name, columns in (("runs", RUNS), ("steps", STEPS), ("validations", VALIDATIONS)):
        whole = pq.read_table(tmp_path / "all" / f"{name}.parquet")
        single = pq.read_table(tmp_path / "one" / f"{name}.parquet")
        assert whole.schema.equals(single.schema)
        assert whole.schema.names == list(columns)
        assert "null" not in {str(kind) for kind in whole.schema.types}
    assert pq.read_table(tmp_path / "one" / "steps.parquet").num_rows == 0
    steps = pq.read_table(tmp_path / "all" / "steps.parquet").to_pylist()
    good = [row for row in steps if row["run_id"] == GOOD and row["rank"] == 0]
    assert math.isnan(good[2]["loss"])
    assert good[2]["loss_scale"] is None
    assert good[0]["warmup"] is True
    rows = pq.read_table(tmp_path / "all" / "runs.parquet").to_pylist()
    told = make_tables(load_run(run) for run in runs.values()).runs
    assert rows == told


def accumulated(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def words(events: EventAccumulator, tag: str) -> str:
    (event,) = events.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_tensorboard_reads_the_scalars_and_texts_back(output: Path, tmp_path: Path) -> None:
    done = invoke("export", output, "--format=tensorboard", "--to", tmp_path / "tb")
    assert done.exit_code == 0, done.output
    folders = {path.parent for path in (tmp_path / "tb").rglob("events.out.tfevents.*")}
    assert {folder.relative_to(folder.parents[1]).as_posix() for folder in folders} == {
        *(f"{GOOD}/rank{rank}" for rank in (0, 1)),
        f"{BAD}_failed/rank0",
        f"{GOING}_interrupted/rank0",
    }
    (folder,) = (tmp_path / "tb").glob(f"*/*/eager_x2/{GOOD}/rank1")
    events = accumulated(folder)
    (run_dir,) = output.glob(f"*/*/eager_x2/{GOOD}")
    records = [json.loads(line) for line in (run_dir / "1" / "metrics.jsonl").read_text().splitlines()]
    intervals = [record for record in records if record["event"] == "interval"]
    rates = events.Scalars("speed/images_per_s")
    assert [event.step for event in rates] == [1, 2, 4, 6]
    assert [event.wall_time for event in rates] == [record["time"] for record in intervals]
    assert [event.value for event in rates] == pytest.approx([128.0, 640.0, 1280.0, 1280.0])
    losses = [event.value for event in events.Scalars("train/loss")]
    assert math.isnan(losses[2])
    assert losses[3] == pytest.approx(0.75)
    assert [(event.step, event.value) for event in events.Scalars("validation/acc1_percent")] == [(6, 41.0)]
    assert "train/loss_scale" not in events.Tags()["scalars"]
    assert "| batch&#95;size | 64 |" in words(events, "config")
    assert words(events, "status") == "finished"
    (bad,) = (tmp_path / "tb").rglob(f"{BAD}_failed/rank0")
    assert words(accumulated(bad), "status") == "NOT A RESULT: failed: rank 0: out of memory"


def test_a_step_done_again_stands_once_in_a_curve_and_is_marked_in_the_table(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "output", config_of(log_interval=1), [0.1] * 4, [4.0, 3.0, 2.0, 1.0])
    path = run_dir / "0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    again = [line for line in lines if line["event"] == "start"][:1]
    again[0] = again[0] | {"attempt": 1}
    again += [line | {"loss": 9.0, "time": line["time"] + 60} for line in lines if line.get("step") in (3, 4)]
    again = [line for line in again if line["event"] != "end"]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *again]))
    rows = make_tables([load_run(run_dir)]).steps
    assert [(row["attempt"], row["step"], row["superseded_steps"]) for row in rows] == [
        *((0, 1, 0), (0, 2, 0), (0, 3, 1), (0, 4, 1), (1, 3, 0), (1, 4, 0)),
    ]
    export([load_run(run_dir)], "tensorboard", tmp_path / "tb")
    (folder,) = {path.parent for path in (tmp_path / "tb").rglob("events.out*")}
    losses = accumulated(folder).Scalars("train/loss")
    assert [(event.step, event.value) for event in losses] == [(1, 4.0), (2, 3.0), (3, 9.0), (4, 9.0)]


def test_damaged_records_and_names_are_exported_all_the_same(tmp_path: Path) -> None:
    hostile = {"arm": "=cmd()|<script>x</script>\n", "device_name": 'a,"b"', "model": "../../up"}
    run_dir = write_run(tmp_path / "output", config_of(), [0.1] * 3, params=hostile)
    with open(run_dir / "0" / "metrics.jsonl", "a", encoding="utf-8") as stream:
        stream.write('{"schema": 1, "event": "interval", "step": "x"}\n[1]\n{"schema": 1, "event": "interval", "st')
    write_json(run_dir / "config.json", {"batch_size": "many", "lr": [1]})
    runs = [load_run(run_dir)]
    for kind in exporting.FORMATS:
        export(runs, kind, tmp_path / "to" / kind)
    (row,) = read_csv(tmp_path / "to" / "csv" / "runs.csv")
    assert row["arm"] == hostile["arm"]
    assert row["config_batch_size"] == ""
    assert int(row["unreadable_lines"]) >= 2
    files = list((tmp_path / "to" / "tensorboard").rglob("events.out*"))
    assert len(files) == 1
    assert "<script>" not in words(accumulated(files[0].parent), "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "to"]


def test_a_text_log_alone_gives_steps_too(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "output", config_of(log_interval=1), [0.1] * 3)
    (run_dir / "0" / "metrics.jsonl").unlink()
    rows = make_tables([load_run(run_dir)]).steps
    assert [(row["rank"], row["step"], row["time_unix_s"]) for row in rows] == [(0, n, None) for n in (1, 2, 3)]
    assert rows[0]["images_per_s"] == pytest.approx(640.0, rel=1e-3)
    export([load_run(run_dir)], "tensorboard", tmp_path / "tb")
    (folder,) = {path.parent for path in (tmp_path / "tb").rglob("events.out*")}
    assert len(accumulated(folder).Scalars("train/loss")) == 3


def test_an_export_is_whole_or_not_there(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [load_run(run) for run in select([str(output)]).folders]
    to = tmp_path / "deep" / "to"

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_write_parquet", full)
        with pytest.raises(OSError, match="No space left"):
            export(runs, "parquet", to)
        assert not (tmp_path / "deep").exists()
    export(runs, "csv", to)
    before = {path.name: path.read_bytes() for path in to.iterdir()}
    with pytest.raises(ValueError, match=r"holds runs\.csv, steps\.csv, validations\.csv already"):
        export(runs, "csv", to)
    real = os.rename

    def fails_once(source: Path, target: Path) -> None:
        if (source.parent.name, source.name) == ("new", "steps.csv"):
            full()
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails_once)
        with pytest.raises(OSError, match="No space left"):
            export(runs[:1], "csv", to, overwrite=True)
    assert {path.name: path.read_bytes() for path in to.iterdir()} == before
    export(runs[:1], "csv", to, overwrite=True)
    assert len(read_csv(to / "runs.csv")) == 1
    export(runs, "parquet", to)
    assert len(list(to.iterdir())) == 6


@pytest.fixture
def comparison(output: Path) -> Path:
    """A comparison of the good run and one that is lost, with an arm that was skipped."""
    folder = output / "comparisons" / "c1"
    folder.mkdir(parents=True)
    (good,) = output.glob(f"*/*/*/{GOOD}")
    entry = {"run_dir": str(good.relative_to(output)), "arm": "eager", "nproc": 2, "status": "finished"}
    lost = {"run_dir": "resnet50/x/kernel_x1/gone", "arm": "kernel", "nproc": 1, "status": "finished"}
    skipped = [{"arm": "torchacc", "nproc": 2, "reason": "no torch_xla; install it"}]
    write_json(folder / "comparison.json", {"schema": 1, "id": "c1", "runs": [entry, lost], "skipped": skipped})
    return folder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["{output}"], {GOOD, BAD, GOING}),
        ([], {GOOD, BAD, GOING}),
        (["{output}/{model}"], {GOOD, BAD, GOING}),
        ([GOOD], {GOOD}),
        (["{run}"], {GOOD}),
        (["{run}", GOOD, "{output}/*/*/eager_x*/*"], {GOOD}),
        (["{output}/*/*/{{kernel}}_x1", BAD], None),
        (["{output}/*/*/kernel_x1"], {BAD}),
        (["{output}/*/*/[ek]*"], {GOOD, BAD}),
        (["c1"], {GOOD, "gone"}),
        (["{output}/comparisons"], {GOOD, "gone"}),
        (["c1", "{output}"], {GOOD, "gone", BAD, GOING}),
    ],
)
def test_what_may_be_chosen(output: Path, comparison: Path, given: list[str], expected: set[str] | None) -> None:
    (run,) = output.glob(f"*/*/*/{GOOD}")
    places = {"output": str(output), "model": run.parents[2].name, "run": str(run)}
    texts = [text.format(**places) for text in given]
    if expected is None:
        with pytest.raises(ValueError, match="nothing fits"):
            select(texts, output)
        return
    runs = select(texts, output).all_runs()
    assert sorted(found.run_id for found in runs) == sorted(expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/no/such", "no folder /no/such"),
        ("20991231", "no folder of a run, nor how the id"),
        ("20261201", "could be 3 runs"),
        ("{run}/status.json", "is a file; give the folder {run}"),
        ("{run}/0/log", "is a file; give the folder {run}"),
        ("{output}/none*", "nothing fits"),
        ("{empty}", "holds no runs"),
        (" ", "is no folder"),
    ],
)
def test_what_means_nothing_is_said(output: Path, tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (run,) = output.glob(f"*/*/*/{GOOD}")
    places = {"output": output, "run": run, "empty": tmp_path / "empty"}
    for command in (["report"], ["export", "--to", str(tmp_path / "to")]):
        done = invoke(*command, given.format(**places), "--output", output)
        assert done.exit_code == 2
        assert said.format(**places) in done.output.strip().splitlines()[-1]
    assert not (tmp_path / "to").exists()


def test_options_that_are_refused(output: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (["--format", "xlsx", "--to", tmp_path / "to"], "format is 'xlsx'; choose one of csv, parquet, tensorboard"),
        ([], "give one with --to"),
        (["--to", output / "comparisons.txt"], "is a file"),
    ):
        (output / "comparisons.txt").write_text("x")
        done = invoke("export", output, *arguments)
        assert done.exit_code == 2
        assert said in done.output


def test_a_comparison_is_exported_with_what_it_lost_and_skipped(comparison: Path, tmp_path: Path) -> None:
    done = invoke("export", comparison, "--to", tmp_path / "to")
    assert done.exit_code == 0, done.output
    rows = {row["run_id"]: row for row in read_csv(tmp_path / "to" / "runs.csv")}
    assert (rows["gone"]["status"], rows["gone"]["is_result"]) == ("failed", "false")
    assert rows["gone"]["reason"] == "its folder is missing"
    assert "torchacc, 2 processes (skipped): no torch_xla; install it" in done.output


def test_what_is_no_run_within_an_output_folder_is_named(output: Path, tmp_path: Path) -> None:
    (run,) = output.glob(f"*/*/*/{GOOD}")
    half = run.parent / "20261201-115300-00000f"
    half.mkdir()
    shutil.copy(run / "command.txt", half)
    done = invoke("export", output, "--to", tmp_path / "to")
    assert done.exit_code == 0
    assert f"{half} (left out): it holds no config.json" in done.output
    assert len(read_csv(tmp_path / "to" / "runs.csv")) == 3
