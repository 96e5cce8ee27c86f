"""Notebook 02, run by papermill with tiny parameters: what its scripts found, against what theory says of a step."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from resnet_acc.lessons.how_it_works import HowItWorks

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "02_how_it_works.ipynb"
TINY = {"model": "small", "steps": 4, "device": "cpu"}
MARK = "ALL RESULTS "
FAST_COMPILER = "--xla_backend_optimization_level=0"
"""Machine code of less speed in less time; the graphs before and after fusion are the same."""
IN_GRAPHS = ("replication", "loader", "boundary", "graph", "read torchacc", "optimizer")


def run(folder: Path, **parameters: Any) -> tuple[str, dict[str, Any]]:
    """Run the notebook from another folder; its texts, and the results of all its scripts."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = f"import json\nprint({MARK!r} + json.dumps([how.results, how.arm, how.no_xla]))"
    notebook.cells.append(nbformat.v4.new_code_cell(code))
    nbformat.write(notebook, folder / "02.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XLA_FLAGS", FAST_COMPILER)
        done = papermill.execute_notebook(
            folder / "02.ipynb", folder / "executed.ipynb", {**TINY, **parameters}, progress_bar=False
        )
    text = "\n".join(
        output.get("text", "") or str(output.get("data", {}).get("text/markdown", ""))
        for cell in done.cells
        for output in cell.get("outputs", [])
    )
    (line,) = (line for line in text.splitlines() if line.startswith(MARK))
    results, arm, no_xla = json.loads(line.removeprefix(MARK))
    pictures = sum("image/png" in output.get("data", {}) for cell in done.cells for output in cell.get("outputs", []))
    return text, {**results, "arm": arm, "no_xla": no_xla, "pictures": pictures}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    pytest.importorskip("torch_xla")
    return run(tmp_path_factory.mktemp("how_it_works"))


@pytest.fixture(scope="module")
def without_xla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same where torch_xla cannot be imported."""
    folder = tmp_path_factory.mktemp("without_xla")
    (folder / "torch_xla").mkdir()
    (folder / "torch_xla" / "__init__.py").write_text("raise ImportError('no torch_xla in this test')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
        yield run(folder)


@pytest.mark.slow
def test_every_section_runs_and_says_what_it_measured(ran: tuple[str, dict[str, Any]]) -> None:
    text, results = ran
    assert (results["arm"], results["no_xla"], results["pictures"]) == ("torchacc", None, 4)
    sections = {"names", "group eager", "group torchacc", *IN_GRAPHS, "read eager", "autocast", "scaling"}
    assert sections | {"reduce eager", "reduce torchacc"} <= set(results)
    assert "nan%" not in text
    assert "passed over" not in text
    for script in ("article_names", "process_group", "step_graph", "read_back", "loss_scaling", "all_reduce"):
        assert f"-m resnet_acc.training.lessons.{script}" in text


def test_a_steps_graph_holds_the_convolutions_that_the_model_predicts(ran: tuple[str, dict[str, Any]]) -> None:
    graph = ran[1]["graph"]
    assert graph["layers"] == {"convolutions": 2, "linear": 1}
    before, after = graph["before"], graph["after"]
    assert before["convolutions"] == 3 * 2  # forward, and two gradients of each
    assert before["backward_convolutions"] == 2 * 2
    assert before["kinds"]["batch-norm-training"] == before["kinds"]["batch-norm-grad"] == 2
    assert before["kinds"]["dot"] == 3
    assert before["dtypes"] == {"bf16": 3 * 2 + 3}
    assert before["operations"] == sum(before["kinds"].values())
    # The gradient of the images is read by nobody. A convolution of one pixel may be compiled as a product.
    assert sum(after["dtypes"].values()) == 3 * 2 - 1 + 3
    assert after["launches"] == sum(after["kinds"].values()) < before["operations"] / 5
    assert after["fusions"] == after["kinds"]["fusion"] > after["launches"] / 2
    assert after["largest_fusion"] > 10
    assert 4 <= len(after["example"]) <= 12


def test_a_short_last_batch_is_the_one_thing_that_compiles_again(ran: tuple[str, dict[str, Any]]) -> None:
    text, results = ran
    steps = results["graph"]["steps"]
    assert [step["size"] for step in steps] == [8, 8, 8, 5, 8, 5]
    assert [step["step_graphs"] for step in steps] == [1, 0, 0, 1, 0, 0]
    assert [step["compilations"] > 0 for step in steps] == [True, False, False, True, False, False]
    assert all(step["executions"] == 1 for step in steps if not step["compilations"])
    assert "2 sizes of batches (8, 5 images) in 6 steps gave 2 compilations" in text


def test_without_mark_step_the_graph_grows_with_the_steps(ran: tuple[str, dict[str, Any]]) -> None:
    rows = ran[1]["boundary"]["rows"]
    assert [row["steps_in_graph"] for row in rows] == [1, 2]
    assert [row["convolutions"] for row in rows] == [6, 12]
    assert [row["first_compilations"] for row in rows] == [1, 1]
    assert [row["second_compilations"] for row in rows] == [0, 0]
    one, two = (row["operations"] for row in rows)
    assert 1.9 < two / one < 2.2


def test_a_read_between_forward_and_backward_cuts_the_step_in_two(ran: tuple[str, dict[str, Any]]) -> None:
    rows = {row["variant"]: row for row in ran[1]["read torchacc"]["rows"]}
    assert {name: (row["executions_per_step"], row["read_backs_per_step"]) for name, row in rows.items()} == {
        "captured, nothing read": (1, 0),
        "traced, nothing read": (1, 0),
        "traced, loss read after each step": (1, 1),
        "traced, loss.item() before backward": (2, 1),
    }
    plain = {row["variant"]: row["executions_per_step"] for row in ran[1]["read eager"]["rows"]}
    assert set(plain.values()) == {None}
    assert len(plain) == 3


def test_the_syncfree_optimizer_reads_nothing_back(ran: tuple[str, dict[str, Any]]) -> None:
    own, plain = ran[1]["optimizer"]["rows"]
    assert (own["compilations"], own["executions_per_step"], own["read_backs_per_step"]) == (1, 1, 0)
    assert (plain["executions_per_step"], plain["read_backs_per_step"]) == (2, 1)
    assert plain["compilations"] > 2  # two halves, and the first step's own
    assert own["later_compilations"] == plain["later_compilations"] == 0


def test_set_replication_registers_the_device(ran: tuple[str, dict[str, Any]]) -> None:
    found = ran[1]["replication"]
    assert found["without"]["devices"] == []
    assert len(found["with"]["devices"]) == 1
    for name in ("without", "with"):
        assert found[name]["all_reduces"] == 1
        assert found[name]["result"] == [0.75, 1.25, 1.75]


def test_a_loaders_error_ends_the_loop_only_where_it_is_kept(ran: tuple[str, dict[str, Any]]) -> None:
    found = ran[1]["loader"]
    assert [(error["batches"], error["raised"]) for error in found["errors"]] == [
        (TINY["steps"] - 1, None),
        (TINY["steps"] - 1, "OSError: the image is cut off"),
    ]
    assert [row["compilations"] for row in found["rows"]] == [0, 0]
    assert [row["executions_per_step"] for row in found["rows"]] == [1, 1]


def test_names_that_the_article_imports(ran: tuple[str, dict[str, Any]]) -> None:
    there = {row["name"]: row["there"] for row in ran[1]["names"]["names"]}
    assert there["core.xla_model.set_replication"]
    assert there["amp.syncfree.AdamW"]
    assert not there["core.xla_model.xrt_world_size"]
    assert not there["amp.GradScaler"]


def check_autocast(found: dict[str, Any], products: bool) -> None:
    outputs = {row["layer"]: (row["weight"], row["output"]) for row in found["O1"]["layers"]}
    # docs.pytorch.org/docs/stable/amp.html: conv2d, linear and matmul in the lower dtype, losses in float32; what is in
    # neither list (batch_norm, relu, pooling) takes what it is given.
    assert outputs == {
        "Conv2d": ("float32", "bfloat16"),
        "BatchNorm2d": ("float32", "bfloat16"),
        "ReLU": ("", "bfloat16"),
        "MaxPool2d": ("", "bfloat16"),
        "AdaptiveAvgPool2d": ("", "bfloat16"),
        "Flatten": ("", "bfloat16"),
        "Linear": ("float32", "bfloat16"),
    }
    assert {row["output"] for row in found["O0"]["layers"]} == {"float32"}
    assert found["O0"]["loss"] == found["O1"]["loss"] == "float32"
    assert found["O1"]["activation_mib"] == pytest.approx(found["O0"]["activation_mib"] / 2)
    assert found["O1"]["products"] == ({"bf16": 9} if products else None)
    assert found["O0"]["products"] == ({"f32": 9} if products else None)


def check_loss_scaling(found: dict[str, Any]) -> None:
    sweep = {row["log2_scale"]: row for row in found["sweep"]}
    zero = [row["zero"] for row in found["sweep"] if row["nonfinite"] == 0]
    assert zero == sorted(zero, reverse=True)
    assert zero[0] > 0.5
    assert zero[-1] == 0
    assert sweep[40]["nonfinite"] > 0.5
    assert sweep[40]["error"] is None
    assert sweep[24]["error"] < sweep[4]["error"]
    steps = found["with"]["steps"]
    spike = found["spike_step"]
    assert [step["step"] for step in steps if step["skipped"]] == [spike]
    assert [step["step"] for step in steps if not step["weights_changed"]] == [spike]
    # From 2^16; three good steps double it, the overflow halves it.
    assert [step["scale"] for step in steps] == [2.0**n for n in (16, 16, 16, 17, 17, 16, 16, 16)]
    assert found["with"]["last_scale"] == 2.0**17
    assert found["with"]["nan_weights"] == 0
    without = found["without"]["steps"]
    assert all(step["nan_weights"] == 0 for step in without[: spike - 1])
    assert all(step["nan_weights"] > 0.5 for step in without[spike - 1 :])
    assert {step["scale"] for step in without} == {None}


def check_sums(found: dict[str, Any]) -> None:
    assert found["world_size"] == 2
    first, second = found["ranks"]
    assert first["local"] != second["local"]
    by_hand = [one + other for one, other in zip(first["local"], second["local"], strict=True)]
    assert found["sum"] == pytest.approx(by_hand, abs=1e-9)
    for rank in (first, second):
        assert rank["mean"] == pytest.approx([value / 2 for value in by_hand], abs=1e-6)
    assert found["largest_error"] < 1e-6


def check_drift(found: dict[str, Any], steps: int) -> None:
    assert [row["difference"] for row in found["with"]] == [0.0] * steps
    without = [row["difference"] for row in found["without"]]
    assert without == sorted(without)
    assert without[0] > 1e-3


def check_group(found: dict[str, Any], backend: str, sums: list[float]) -> None:
    assert (found["backend"], found["world_size"], found["expected_sum"]) == (backend, 2, 3)
    assert "not been initialized" in found["without_group"]
    ranks = found["ranks"]
    assert len({rank["pid"] for rank in ranks}) == 2
    assert [(rank["rank"], rank["local"], rank["mean"]) for rank in ranks] == [(0, 1, 1.5), (1, 2, 1.5)]
    assert [rank["backend_sum"] for rank in ranks] == sums


def test_autocast_gives_the_dtypes_of_pytorchs_table(ran: tuple[str, dict[str, Any]]) -> None:
    check_autocast(ran[1]["autocast"], products=True)


def test_an_overflow_halves_the_scale_and_skips_the_step(ran: tuple[str, dict[str, Any]]) -> None:
    check_loss_scaling(ran[1]["scaling"])


def test_ranks_gradients_add_up_on_both_arms(ran: tuple[str, dict[str, Any]]) -> None:
    check_group(ran[1]["group eager"], "gloo", [3, 3])
    check_group(ran[1]["group torchacc"], "xla", [1, 2])  # on a CPU the backend's own sum is none: see the notebook
    assert "**not the sum, 3**" in ran[0]
    for arm in ("eager", "torchacc"):
        check_sums(ran[1][f"reduce {arm}"])
    check_drift(ran[1]["reduce eager"], TINY["steps"])


@pytest.mark.slow
def test_where_torch_xla_is_missing_the_eager_half_runs(without_xla: tuple[str, dict[str, Any]]) -> None:
    text, results = without_xla
    assert results["arm"] == "eager"
    assert "torch_xla" in results["no_xla"]
    assert "no torch_xla in this test" in results["no_xla"]
    assert text.count("passed over") >= 6  # the list, and each section by itself
    assert not set(IN_GRAPHS) & set(results)
    check_group(results["group eager"], "gloo", [3, 3])
    check_autocast(results["autocast"], products=False)
    check_loss_scaling(results["scaling"])
    check_sums(results["reduce eager"])
    check_drift(results["reduce eager"], TINY["steps"])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"steps": 3}, "steps is 3"),
        ({"last_batch": 8}, "last_batch is 8; give 2 to 7"),
        ({"last_batch": 1}, "last_batch is 1"),
        ({"batch_size": 2}, "batch_size is 2"),
        ({"arm": "inductor"}, "arm is 'inductor'"),
        ({"model": "resnet19"}, "resnet19"),
        ({"image_size": 16}, "image_size is 16"),
        ({"processes": 0}, "nproc_per_node is 0"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"amp_dtype": "float8"}, "amp_dtype is 'float8'"),
    ],
)
def test_bad_values_are_refused_before_anything_runs(
    parameters: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("resnet_acc.launch.preflight.probe", started.append)
    values = {"arm": None, "processes": 2, "batch_size": 8, "last_batch": None, "image_size": 32, "seed": 0}
    with pytest.raises(ValueError, match="^.*" + words):
        HowItWorks({**values, **TINY, "amp_dtype": "auto", **parameters})
    assert started == []


def test_unknown_parameter_stops_the_notebook(tmp_path: Path) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        run(tmp_path, bacth_size=8)
    assert caught.value.ename == "ValueError"
    assert "did you mean batch_size?" in caught.value.evalue
