"""The check of an image folder: what it names, what it lets pass, and what the command says of it."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from resnet_acc.datasets import check
from resnet_acc.datasets.check import check_folder
from resnet_acc.datasets.cli import data_app
from resnet_acc.datasets.report import FolderReport


def encoded(mode: str = "RGB", kind: str = "JPEG", size: tuple[int, int] = (24, 16), **options: object) -> bytes:
    """One image of noise as a file's bytes."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


GOOD = encoded()


def put(path: Path, content: bytes = GOOD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with three training images and one validation image each, all good."""
    for name in ("cat", "dog"):
        for number in range(3):
            put(tmp_path / "images" / "train" / name / f"{number}.jpg")
        put(tmp_path / "images" / "val" / name / "0.JPEG")
    return tmp_path / "images"


def checked(folder: Path, workers: int = 1) -> FolderReport:
    return check_folder(folder, workers=workers, progress=False)


def problems(report: FolderReport) -> list[tuple[str, str]]:
    return [(problem.kind, problem.path) for problem in report.problems]


def test_a_good_folder_has_counts_sizes_and_modes_and_nothing_wrong(folder: Path) -> None:
    report = checked(folder)
    assert report.ok
    assert report.verdict == "nothing wrong was found"
    assert report.parts["train"].classes == {"cat": 3, "dog": 3}
    assert report.parts["val"].classes == {"cat": 1, "dog": 1}
    values = report.values()
    assert values["num_images"] == 8
    train = values["parts"]["train"]
    assert (train["modes"], train["formats"], train["num_bytes"]) == ({"RGB": 6}, {"JPEG": 6}, 6 * len(GOOD))
    assert (train["smallest_size"], train["median_size"], train["largest_size"]) == ((24, 16),) * 3
    assert json.loads(json.dumps(values, allow_nan=False))["ok"] is True
    assert list(report.table().index) == ["train", "val"]
    assert report.problems_table().empty


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "empty file", "0 bytes"),
        (b"<html><body>404</body></html>", "no image", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "no image", "LFS"),
        (b"\0" * 400, "no image", "no known format"),
        (GOOD[: len(GOOD) // 2], "truncated", "cut off"),
        (GOOD[:-40], "truncated", "cut off"),
        (encoded(kind="PNG")[:300], "truncated", "cut off"),
        (encoded(size=(400, 300))[:9000], "truncated", "cut off"),  # decoded at an eighth of its size
    ],
)
def test_a_bad_image_is_named_by_its_full_path(folder: Path, content: bytes, kind: str, words: str) -> None:
    bad = put(folder / "train" / "dog" / "bad.jpg", content)
    report = checked(folder)
    assert not report.ok
    assert problems(report) == [(kind, str(bad))]
    assert words in report.problems[0].reason
    assert report.parts["train"].num_good == 6
    assert str(bad) in report.text()
    assert str(bad) in report.problems_table()["path"].tolist()


def test_deep_images_are_named_and_unusual_modes_only_noted(folder: Path) -> None:
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(folder / "train" / "cat" / "deep.png")
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(folder / "train" / "cat" / "float.tif")
    put(folder / "train" / "dog" / "print.jpg", encoded("CMYK"))
    put(folder / "train" / "dog" / "palette.png", encoded("P", "PNG"))
    put(folder / "train" / "dog" / "disguised.JPEG", encoded("RGBA", "PNG"))
    report = checked(folder)
    assert report.num_problems == {"too deep": 2}
    assert {Path(path).name for _, path in problems(report)} == {"deep.png", "float.tif"}
    assert report.parts["train"].modes == {"RGB": 6, "CMYK": 1, "P": 1, "RGBA": 1}
    assert report.parts["train"].formats == {"JPEG": 7, "PNG": 2}
    for words in ("mode CMYK", "mode P (a palette)", "mode RGBA"):
        assert any(words in note for note in report.notes), words


def test_turned_images_are_noted(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    put(folder / "val" / "cat" / "turned.jpg", encoded(exif=exif))
    report = checked(folder)
    assert report.ok
    assert any("1 images lie turned" in note for note in report.notes)


def test_classes_that_lie_in_one_part_only_or_are_empty(folder: Path) -> None:
    put(folder / "val" / "fox" / "0.jpg")
    put(folder / "train" / "owl" / "0.jpg")
    (folder / "train" / "cow").mkdir()
    put(folder / "val" / "cow" / "readme.txt", b"not yet")
    assert problems(checked(folder)) == [
        ("class only in train", str(folder / "train" / "owl")),
        ("class only in val", str(folder / "val" / "fox")),
        ("empty class", str(folder / "train" / "cow")),
        ("empty class", str(folder / "val" / "cow")),
    ]


def test_hidden_folders_other_files_and_loose_images_are_passed_over_and_noted(folder: Path) -> None:
    put(folder / "train" / ".ipynb_checkpoints" / "x-checkpoint.jpg", b"")
    put(folder / "train" / "cat" / ".cache" / "x.jpg", b"")
    put(folder / "train" / "cat" / "readme.txt", b"words")
    put(folder / "train" / "loose.jpg", b"")
    put(folder / "train" / "cat" / "deeper" / "still" / "1.png", encoded(kind="PNG"))
    report = checked(folder)
    assert report.ok
    assert report.parts["train"].classes == {"cat": 4, "dog": 3}
    assert (report.parts["train"].num_hidden, report.parts["train"].num_other) == (2, 1)
    assert any("1 images lie beside the class folders" in note for note in report.notes)


def test_a_flat_validation_folder_as_imagenet_ships_it_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "val")
    put(folder / "val" / "ILSVRC2012_val_00000001.JPEG")
    assert problems(checked(folder)) == [("no classes", str(folder / "val"))]


def test_without_validation_images_there_is_a_note(folder: Path) -> None:
    shutil.rmtree(folder / "val")
    report = checked(folder)
    assert report.ok
    assert any("no val/" in note for note in report.notes)


def test_links_are_followed_once_and_broken_ones_named(folder: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "1.jpg")
    (folder / "train" / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "val" / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "train" / "cat" / "loop").symlink_to(folder / "train")
    broken = folder / "train" / "dog" / "gone.jpg"
    broken.symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(folder / "train" / "dog" / "pipe.jpg")
    report = checked(folder)
    assert report.parts["train"].classes["linked"] == 1
    assert problems(report) == [("unreadable", str(broken)), ("unreadable", str(folder / "train" / "dog" / "pipe.jpg"))]


def test_names_that_are_no_text_can_be_printed(folder: Path) -> None:
    bad = os.fsencode(folder / "train" / "cat") + b"/\xff\n.jpg"
    with open(bad, "wb"):
        pass
    report = checked(folder)
    assert os.fsencode(report.problems[0].path) == bad
    report.text().encode("utf-8")
    assert "\\xff\\n.jpg: it has 0 bytes" in report.text()
    json.dumps(report.values())


def test_several_processes_find_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(150):
        put(folder / "train" / "cat" / f"more{number}.jpg")
    bad = [put(folder / "val" / "dog" / f"bad{number}.jpg", GOOD[:200]) for number in range(70)]
    monkeypatch.setattr(check, "_FEW", 10)
    one, two = checked(folder), checked(folder, workers=2)
    assert problems(two) == problems(one)
    assert [path for _, path in problems(two)] == sorted(map(str, bad))
    assert two.values() | {"seconds": 0} == one.values() | {"seconds": 0}


def test_many_problems_are_counted_and_the_first_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_LISTED", 5)
    for number in range(30):
        put(folder / "train" / "cat" / f"empty{number}.jpg", b"")
    report = checked(folder)
    assert (len(report.problems), report.num_problems) == (5, {"empty file": 30})
    assert "empty file: 25 more" in report.text()


def test_only_a_few_chunks_are_under_way_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million paths must not lie in memory at once: chunks are asked for as others are done."""
    asked, done = 0, 0
    monkeypatch.setattr(check, "_CHUNK", 1)
    real = check._chunks

    def chunks(root: Path):
        nonlocal asked
        for number in range(60):
            asked += 1
            assert asked - done <= 8
            yield "train", [str(root / "train" / "cat" / f"{number % 3}.jpg")]

    assert len(list(real(folder))) == 8
    for _, _, looks in check._look_at_all(chunks(folder), workers=2):
        assert [look.kind for look in looks] == [""]
        done += 1
    assert done == 60


@pytest.mark.parametrize("inside", ["", "train"])
def test_a_folder_that_holds_no_train_is_refused_with_the_mend(folder: Path, inside: str) -> None:
    with pytest.raises(ValueError, match="give the folder" if inside else "is no folder"):
        checked(folder / inside if inside else folder / "gone")
    with pytest.raises(ValueError, match="workers is 0"):
        checked(folder, workers=0)


def run_check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(data_app, ["check", "--no-progress", *arguments])
    return done.exit_code, done.output


def test_the_command_tells_by_its_exit_status(folder: Path) -> None:
    status, output = run_check(str(folder))
    assert (status, output.splitlines()[-1]) == (0, "nothing wrong was found")
    bad = put(folder / "train" / "cat" / "bad.png", b"<html>")
    status, output = run_check(str(folder), "--workers=1")
    assert status == 1
    assert f"no image: {bad}: it is text such as HTML or XML" in output
    assert output.splitlines()[-1] == "1 problems: 1 x no image"
    status, output = run_check(str(folder), "--json")
    assert status == 1
    assert json.loads(output)["problems"] == [
        {"kind": "no image", "path": str(bad), "reason": "it is text such as HTML or XML"}
    ]
    status, output = run_check(str(folder / "gone"))
    assert status == 2
    assert "is no folder" in output
