"""Notebook 04's parts: arrays written as a folder, the loader timed, and what is said of rates and accuracies."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from launch_tools import CPU_ENVIRONMENT
from PIL import Image
from synthetic_runs import write_run

from resnet_acc.config import RunConfig
from resnet_acc.datasets.arrays import write_image_folder
from resnet_acc.lessons import real_data
from resnet_acc.lessons.real_data import RealData
from resnet_acc.lessons.real_data_words import accuracy_estimate, accuracy_words, bound_words
from resnet_acc.lessons.script import ScriptFailed, run_script
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import load_run
from resnet_acc.training import loader_rate
from resnet_acc.training.distributed import Place

LABELS = ["cat"] * 10 + ["dog"] * 5
IMAGES = np.arange(15 * 6 * 8, dtype=np.float64).reshape(15, 6, 8) % 250 + 0.4


def test_arrays_become_an_image_folder(tmp_path: Path) -> None:
    counts = write_image_folder(IMAGES, LABELS, tmp_path / "images")
    assert (counts.classes, counts.train_images, counts.val_images) == (["cat", "dog"], 12, 3)
    assert sorted(path.stem for path in (tmp_path / "images" / "val").rglob("*.png")) == ["14", "4", "9"]
    with Image.open(tmp_path / "images" / "train" / "dog" / "12.png") as image:
        assert (image.mode, image.size) == ("L", (8, 6))
        assert np.array_equal(np.asarray(image), np.rint(IMAGES[12]))
    colours = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3))
    write_image_folder(colours, [0, 1, 0, 1], tmp_path / "colours", val_every=2)
    with Image.open(tmp_path / "colours" / "val" / "1" / "3.png") as image:
        assert np.array_equal(np.asarray(image), colours[3])


def test_a_folder_that_is_there_is_left_alone_and_another_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:  # notebooks of a batch may want the same images at once
        found = list(pool.map(lambda _: write_image_folder(IMAGES, LABELS, tmp_path / "images"), range(4)))
    assert {counts.train_images for counts in found} == {12}
    (tmp_path / "images" / "train" / "cat" / "0.png").write_bytes(b"mine")
    write_image_folder(IMAGES, LABELS, tmp_path / "images")
    assert (tmp_path / "images" / "train" / "cat" / "0.png").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    with pytest.raises(ValueError, match="holds other images"):
        write_image_folder(IMAGES[:14], LABELS[:14], tmp_path / "images")


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[0], LABELS, "shape"),
        (IMAGES, LABELS[:-1], "14 labels"),
        (IMAGES - 1.0, LABELS, "0 to 255"),
        (IMAGES * 2.0, LABELS, "0 to 255"),
        (IMAGES[:0], [], "none"),
        (IMAGES, ["../out"] * 15, "'../out'"),
        (IMAGES, [".hidden"] * 15, "'.hidden'"),
    ],
)
def test_bad_arrays_are_refused_and_nothing_is_written(tmp_path: Path, images, labels, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        write_image_folder(images, labels, tmp_path / "images")
    assert list(tmp_path.iterdir()) == []


def test_the_loader_alone_is_timed_for_each_count_and_rank(mock_data: Path) -> None:
    arguments = [f"--data={mock_data}", "--image_size=32", "--batch_size=8", "--seconds=0.2", "--repeats=3"]
    result = run_script("resnet_acc.training.loader_rate", [*arguments, "--workers=0,1", "--device=cpu"], nproc=2)
    assert (result["world_size"], result["num_train_images"], result["num_classes"]) == (2, 48, 4)
    assert [entry["workers"] for entry in result["rates"]] == [0, 1]
    for entry in result["rates"]:
        assert len(entry["repeats"]) == 3
        assert entry["images_per_s"] == sorted(entry["repeats"])[1] > 0


def test_a_loader_that_cannot_run_says_why(mock_data: Path) -> None:
    arguments = [f"--data={mock_data}", "--image_size=32", "--batch_size=64", "--seconds=0.1"]
    with pytest.raises(ScriptFailed, match="48 images < batch 64 x 1 processes: 0 steps"):
        run_script("resnet_acc.training.loader_rate", arguments)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--workers=one", "workers is 'one'"),
        ("--workers=-1", "workers is -1"),
        ("--data=synthetic", "no loader loads"),
        ("--repeats=0", "repeats is 0"),
        ("--seconds=0", "seconds 0"),
    ],
)
def test_options_of_the_loaders_script_are_checked(argument: str, words: str) -> None:
    options = loader_rate._parser().parse_args([argument])
    with pytest.raises(ValueError, match=words):
        loader_rate._configs(options, Place(rank=0, local_rank=0, world_size=1))


def a_run(output: Path, step_s: float, waiting_s: float, data: str = "/pictures", workers: int = 1) -> Run:
    """A run of 8 images a step that waits so long for each batch."""
    config = RunConfig(batch_size=8, data=data, log_interval=5)
    # Windows that differ a little, so that there is an interval.
    times = [step_s * (0.999 if number // 5 % 2 else 1.001) for number in range(40)]
    folder = write_run(output, config, times, interval={"data_time_s": waiting_s}, params={"workers": workers})
    return load_run(folder)


def rates(**images_per_s: float) -> dict:
    entries = [
        {"workers": int(name[1:]), "images_per_s": rate, "repeats": [0.9 * rate, rate, 1.1 * rate]}
        for name, rate in images_per_s.items()
    ]
    return {"rates": entries}


def test_a_loader_that_bounds_training_is_called_the_bound(tmp_path: Path) -> None:
    """100 images/s on the folder, 60 % of a step waiting, 200 without a loader."""
    folder, synthetic = a_run(tmp_path / "a", 0.08, 0.048), a_run(tmp_path / "b", 0.04, 0.0, "synthetic")
    words = bound_words(rates(w0=90, w1=110, w4=250), synthetic, folder, "cuda")
    assert "takes 100 images/s" in words
    assert "the folder costs 50 % of the speed" in words
    assert "60 % of a step is spent waiting for the next batch: **the loader is the bound**" in words
    assert "set `workers = 4` (now 1)" in words
    slow = bound_words(rates(w0=90, w1=110, w2=120), synthetic, folder, "cuda")
    assert "at most 120 images/s, with 2 processes, less than training could take" in slow
    assert "take turns on the same cores" in bound_words(rates(w1=500), synthetic, folder, "cpu")


def test_a_loader_that_keeps_up_is_not_blamed(tmp_path: Path) -> None:
    folder, synthetic = a_run(tmp_path / "a", 0.04, 0.0001), a_run(tmp_path / "b", 0.04, 0.0, "synthetic")
    words = bound_words(rates(w1=900), synthetic, folder, "cuda")
    assert "**the loader keeps up**" in words
    assert "these runs do not show that loading costs anything" in words
    assert "No rate of training" in bound_words(rates(w1=900), synthetic, None, "cuda")


def test_an_accuracy_has_wilsons_interval() -> None:
    """Wilson's interval of 8 in 10 by his formula: (0.8 + z^2/20 +- z sqrt(0.16/10 + z^2/400)) / (1 + z^2/10)."""
    estimate = accuracy_estimate(80.0, 10)
    assert (estimate.low, estimate.high) == (pytest.approx(49.016, abs=0.01), pytest.approx(94.332, abs=0.01))
    assert accuracy_estimate(0.0, 20).low == 0.0
    assert accuracy_estimate(100.0, 20).high == pytest.approx(100.0)


def test_an_accuracy_is_held_against_guessing() -> None:
    last = {"epoch": 3, "acc1": 80.0, "images": 10, "acc5": 100.0, "loss": 0.5}
    assert "**it has learned**" in accuracy_words([last], 25.0)
    assert "After 4 epochs 80.0 % of 10 validation images" in accuracy_words([last], 25.0)
    assert "do not show that it has learned" in accuracy_words([last], 50.0)
    assert "no validation images" in accuracy_words([], None)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resnet_acc.launch.preflight.probe", lambda **_: CPU_ENVIRONMENT)
    monkeypatch.setattr("resnet_acc.launch.machine.num_cores", lambda: 4)


def parameters(output: Path, folder: Path | str, **changes: object) -> dict[str, object]:
    values = {"preset": "quick", "arm": "eager", "processes": 1, "data": str(folder), "worker_counts": None}
    more = {"loader_seconds": 0.1, "loader_repeats": 1, "stop_at_problems": True, "max_steps": None}
    return {**values, **more, "output": str(output), **changes}


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "synthetic"}, "which is no folder"),
        ({"loader_seconds": 0.0}, "loader_seconds is 0.0"),
        ({"loader_repeats": 0}, "loader_repeats 0"),
        ({"worker_counts": "1,-2"}, "worker_counts is '1,-2'"),
        ({"worker_counts": "many"}, "worker_counts is 'many'"),
        ({"arm": "fast"}, "'fast'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"image_size": 8}, "image_size is 8"),
    ],
)
def test_bad_parameters_are_refused(tmp_path: Path, mock_data: Path, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RealData(parameters(tmp_path / "out", mock_data, **changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("cpu")
def test_settings_are_the_presets_with_float32_on_a_cpu_and_whole_epochs(tmp_path: Path, mock_data: Path) -> None:
    real = RealData(parameters(tmp_path, mock_data, preset="standard"))
    assert (real.config.max_steps, real.config.amp_level, real.worker_counts) == (None, "O0", [0, 1, 2, 4])
    assert RealData(parameters(tmp_path, mock_data, max_steps=7)).config.max_steps == 7
    assert RealData(parameters(tmp_path, mock_data, amp_level="O1")).config.amp_level == "O1"
    digits = RealData(parameters(tmp_path, "digits"))
    assert digits.from_arrays
    assert digits.folder.name == "digits"


@pytest.mark.usefixtures("cpu")
def test_a_folder_with_problems_stops_unless_the_reader_wants_it(tmp_path: Path) -> None:
    write_image_folder(IMAGES, LABELS, tmp_path / "images")
    bad = tmp_path / "images" / "train" / "cat" / "bad.png"
    bad.write_bytes(b"<html>")
    real = RealData(parameters(tmp_path, tmp_path / "images", batch_size=4))
    with pytest.raises(ValueError, match=r"1 problems: 1 x no image, the first: .*bad\.png.*stop_at_problems = False"):
        real.check()
    real = RealData(parameters(tmp_path, tmp_path / "images", batch_size=4, stop_at_problems=False))
    assert real.check().loc["train", "images"] == 13
    too_large = RealData(parameters(tmp_path, tmp_path / "images", batch_size=64, stop_at_problems=False))
    with pytest.raises(ValueError, match="0 steps"):
        too_large.check()
    with pytest.raises(ValueError, match="is no folder"):
        RealData(parameters(tmp_path, tmp_path / "gone")).check()


@pytest.mark.usefixtures("cpu")
def test_tables_and_words_come_from_the_runs(tmp_path: Path, mock_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[RunConfig] = []

    def launch_cell(config: RunConfig) -> Path:
        started.append(config)
        seen = {"acc1": 75.0, "acc5": 100.0, "loss": 0.7, "images": 16}
        validation = None if config.data == "synthetic" else seen
        return write_run(Path(config.output), config, [0.1] * 24, validation=validation)

    monkeypatch.setattr(real_data, "launch_cell", launch_cell)
    real = RealData(parameters(tmp_path, mock_data, worker_counts="1", epochs=3))
    real.check()
    assert real.chance() == 25.0
    real.train_without_loader()
    real.train()
    assert [(config.data, config.epochs) for config in started] == [("synthetic", 1), (str(mock_data), 3)]
    (synthetic, folder) = started
    assert (synthetic.batch_size, synthetic.image_size, synthetic.amp_level) == (
        folder.batch_size,
        folder.image_size,
        folder.amp_level,
    )
    assert real.accuracy()["top-1 % [CI]"].tolist() == ["75.0 [50.5, 89.8]"]  # Wilson's interval of 12 in 16
    assert "**it has learned**" in real.learned()
    assert real.rates()["what"].tolist() == ["training without a loader", "training on the folder, 1 loader processes"]
    real.figure().savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
