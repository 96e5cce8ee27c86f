"""Mock ImageNet: what lies in the folder after a call, a second call, a killed call and a refused one."""

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from resnet_acc.datasets import mock
from resnet_acc.datasets.cli import data_app
from resnet_acc.datasets.folder import count_images
from resnet_acc.datasets.mock import make_mock_imagenet
from resnet_acc.datasets.mock_options import PRESETS, MockOptions, read_options

SMALL = {"classes": 3, "images_per_class": 9, "val_images_per_class": 2, "size": 32, "progress": False}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_layout_counts_and_class_order(tmp_path):
    summary = make_mock_imagenet(tmp_path / "m", **SMALL, workers=1)
    counts = count_images(tmp_path / "m")
    assert (counts.train_images, counts.val_images) == (27, 6) == (summary.train_images, summary.val_images)
    assert counts.classes == [mock.wnid(number) for number in range(3)] == ["n01000000", "n01004099", "n01008198"]
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["mock.json", "train", "val"]
    assert summary.written_images == 33


def test_images_are_rgb_jpegs_of_varying_size_and_aspect(tmp_path):
    make_mock_imagenet(tmp_path, classes=1, images_per_class=40, val_images_per_class=0, size=100, progress=False)
    sizes = []
    for path in (tmp_path / "train").rglob("*.JPEG"):
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            sizes.append(image.size)
    long_edges = [max(size) for size in sizes]
    assert len(set(sizes)) > 20
    assert min(long_edges) >= 70
    assert max(long_edges) <= 130
    assert any(width > height for width, height in sizes)
    assert any(width < height for width, height in sizes)
    assert min(min(size) / max(size) for size in sizes) < 0.75


def test_same_bytes_whatever_the_number_of_workers(tmp_path):
    make_mock_imagenet(tmp_path / "one", **SMALL, workers=1)
    make_mock_imagenet(tmp_path / "three", **SMALL, workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")
    make_mock_imagenet(tmp_path / "seed", **SMALL, seed=1, workers=1)
    one, other = contents(tmp_path / "one"), contents(tmp_path / "seed")
    assert one.keys() == other.keys()
    assert not {name for name in one if one[name] == other[name]}


def test_images_of_a_class_differ_from_each_other(tmp_path):
    make_mock_imagenet(tmp_path, **SMALL, workers=1)
    digests = [digest for name, digest in contents(tmp_path).items() if name.endswith(".JPEG")]
    assert len(set(digests)) == len(digests) == 33


def test_second_call_changes_nothing_not_even_times(tmp_path):
    make_mock_imagenet(tmp_path, **SMALL, workers=1)
    before = times(tmp_path)
    time.sleep(0.02)
    summary = make_mock_imagenet(tmp_path, **SMALL, workers=1)
    assert times(tmp_path) == before
    assert (summary.written_images, summary.written_bytes) == (0, 0)


def test_second_call_completes_what_is_missing_and_leaves_the_rest(tmp_path):
    make_mock_imagenet(tmp_path, **SMALL, workers=1)
    whole, before = contents(tmp_path), times(tmp_path)
    lost = ["train/n01004099/n01004099_3.JPEG", "val/n01000000/n01000000_val_1.JPEG"]
    for name in lost:
        (tmp_path / name).unlink()
    (tmp_path / "train/n01000000/n01000000_0.JPEG").write_bytes(b"")  # as after a loss of power
    (tmp_path / "train/n01000000/own.jpg").write_bytes(b"the user's own")
    summary = make_mock_imagenet(tmp_path, **SMALL, workers=1)
    assert summary.written_images == 3
    after = contents(tmp_path)
    assert after.pop("train/n01000000/own.jpg") == hashlib.sha256(b"the user's own").hexdigest()
    assert after == whole
    rewritten = {*lost, "train/n01000000/n01000000_0.JPEG"}
    assert {name for name in whole if times(tmp_path)[name] != before[name]} == rewritten


def test_other_options_are_refused_naming_both(tmp_path):
    make_mock_imagenet(tmp_path, **SMALL, workers=1)
    before = times(tmp_path)
    with pytest.raises(ValueError, match=r"made with classes=3 .* asked for is classes=4 ") as caught:
        make_mock_imagenet(tmp_path, **{**SMALL, "classes": 4}, workers=1)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="seed=0.*seed=5"):
        make_mock_imagenet(tmp_path, **SMALL, seed=5)
    assert times(tmp_path) == before


def test_a_folder_of_other_images_is_refused(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"no mock data \(it has no mock.json\)"):
        make_mock_imagenet(tmp_path, **SMALL)
    assert not (tmp_path / "mock.json").exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"generator": 99, "options": {}}', '{"generator": 1, "options": {"a": 1}}']
)
def test_a_damaged_manifest_is_named(tmp_path, text):
    (tmp_path / "mock.json").write_text(text)
    with pytest.raises(ValueError, match=r"mock\.json cannot be used"):
        read_options(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes", 0),
        ("classes", 2.5),
        ("classes", True),
        ("images_per_class", -1),
        ("images_per_class", "7"),
        ("val_images_per_class", -1),
        ("size", 8),
        ("size", 100_000),
        ("seed", -1),
        ("workers", 0),
    ],
)
def test_bad_values_are_refused_by_name(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"^{name} is {value!r}; give a"):
        make_mock_imagenet(tmp_path / "m", **{**SMALL, name: value})
    assert not (tmp_path / "m" / "train").exists()


def test_too_many_images_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"classes=1000 of images_per_class=100000 are 100,010,000 images; give at most"
    ):
        make_mock_imagenet(tmp_path / "m", classes=1000, images_per_class=100_000)


def test_unknown_preset_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="preset is 'quik'; choose one of quick, imagenet-like"):
        make_mock_imagenet(tmp_path, "quik")


def test_presets_are_what_the_readme_says():
    assert PRESETS["quick"] == MockOptions(classes=10, images_per_class=48, val_images_per_class=10, size=112)
    assert PRESETS["imagenet-like"].classes == 1000
    assert PRESETS["imagenet-like"].size == 500


def test_too_small_a_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    class Usage:
        free = 20_000

    monkeypatch.setattr(mock.shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(ValueError, match=r"33 images need about 0 MB and .* has 0 MB free"):
        make_mock_imagenet(tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_estimate_of_the_disk_need_is_near_what_is_written(tmp_path, monkeypatch):
    asked = []

    class Usage:
        free = 10**12

    def usage(folder):
        asked.append(folder)
        return Usage

    monkeypatch.setattr(mock.shutil, "disk_usage", usage)
    options = {**SMALL, "classes": 6, "size": 100}
    summary = make_mock_imagenet(tmp_path / "a", **options, workers=1)
    assert asked
    Usage.free = summary.written_bytes // 2
    with pytest.raises(ValueError, match="need about"):
        make_mock_imagenet(tmp_path / "b", **options)
    Usage.free = 2 * summary.written_bytes + 66 * 4096
    assert make_mock_imagenet(tmp_path / "b", **options, workers=1).written_images == 66


def test_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file"):
        make_mock_imagenet(tmp_path / "file", **SMALL)
    with pytest.raises(OSError, match="choose a folder that can be written"):
        make_mock_imagenet(tmp_path / "file" / "below", **SMALL)
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o555)
        with pytest.raises(OSError, match="choose a folder that can be written"):
            make_mock_imagenet(tmp_path / "closed", **SMALL)


def test_a_killed_call_leaves_whole_files_and_the_next_completes_them(tmp_path, python):
    options = {"classes": 20, "images_per_class": 40, "val_images_per_class": 1, "size": 200, "progress": False}
    call = f"m({str(tmp_path / 'm')!r}, **{options!r}, workers=2)"
    code = f"from resnet_acc.datasets.mock import make_mock_imagenet as m; {call}"
    process = subprocess.Popen([python, "-c", code], start_new_session=True)
    while not list((tmp_path / "m").glob("train/*/*.JPEG")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()  # the parent alone: its workers must not go on
    process.wait()
    deadline = time.monotonic() + 30
    while _alive_in_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive_in_session(process.pid)
    found = list((tmp_path / "m").glob("*/*/*"))
    assert 0 < len(found) < 820
    for path in found:
        with Image.open(path) as image:
            image.load()
    summary = make_mock_imagenet(tmp_path / "m", **options, workers=1)
    assert summary.written_images == 820 - len(found)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["mock.json", "train", "val"]


def _alive_in_session(session: int) -> list[int]:
    alive = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                alive.append(int(entry.name))
    return alive


def test_ctrl_c_ends_the_call_and_its_workers(tmp_path, python):
    code = (
        "from resnet_acc.datasets.mock import make_mock_imagenet as m; "
        f"m({str(tmp_path / 'm')!r}, classes=50, images_per_class=60, size=300, workers=2, progress=False)"
    )
    process = subprocess.Popen([python, "-c", code], start_new_session=True, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "m").glob("train/*/*.JPEG")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    deadline = time.monotonic() + 15  # workers end by themselves, a moment after the call that they served
    while _alive_in_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive_in_session(process.pid)
    assert not (tmp_path / "m" / ".partial").exists()


def test_two_calls_at_once_make_one_whole_folder(tmp_path, python):
    code = (
        "from resnet_acc.datasets.mock import make_mock_imagenet as m; "
        f"m({str(tmp_path / 'm')!r}, classes=3, images_per_class=60, size=64, workers=1, progress=False)"
    )
    both = [subprocess.Popen([python, "-c", code]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    counts = count_images(tmp_path / "m")
    assert (counts.train_images, counts.val_images) == (180, 30)


def test_command_makes_and_completes_and_refuses(tmp_path):
    runner, folder = CliRunner(), str(tmp_path / "m")
    arguments = [
        "mock",
        "--folder",
        folder,
        "--classes=2",
        "--images-per-class=3",
        "--val-images-per-class=1",
        "--size=32",
    ]
    done = runner.invoke(data_app, [*arguments, "--no-progress"])
    assert done.exit_code == 0, done.output
    assert "2 classes, 6 training and 2 validation images; 8 written" in done.output
    assert json.loads((tmp_path / "m/mock.json").read_text())["options"] == {
        "classes": 2,
        "images_per_class": 3,
        "val_images_per_class": 1,
        "size": 32,
        "seed": 0,
    }
    next((tmp_path / "m").glob("val/*/*.JPEG")).unlink()
    plain = runner.invoke(data_app, ["mock", "--folder", folder])  # no option: goes on with those of the folder
    assert "1 written" in plain.output
    refused = runner.invoke(data_app, [*arguments[:3], "--preset=quick"])
    assert refused.exit_code == 1
    assert "was made with classes=2" in refused.output
    for wrong in (["--classes=0"], ["--preset=tiny"], ["--clases=3"], ["--size=abc"]):
        assert runner.invoke(data_app, ["mock", "--folder", str(tmp_path / "n"), *wrong]).exit_code != 0
    assert not (tmp_path / "n" / "train").exists()
