"""Counting an image folder, by the rules that training reads it by."""

import pytest

from resnet_acc.datasets.folder import IMAGE_EXTENSIONS, count_images


def fill(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_extensions_are_torchvisions():
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert set(IMAGE_EXTENSIONS) == set(IMG_EXTENSIONS)


def test_hidden_folders_and_other_files_do_not_count(tmp_path):
    fill(tmp_path, "train/dog/1.jpg", "train/cat/1.JPEG", "train/cat/2.PnG", "train/cat/notes.txt", "train/list.jpg")
    fill(tmp_path, "train/.ipynb_checkpoints/1-checkpoint.jpg", "train/cat/.ipynb_checkpoints/1-checkpoint.jpg")
    fill(tmp_path, "train/cat/.hidden.jpg", "val/dog/1.jpg")
    counts = count_images(tmp_path)
    assert counts.classes == ["cat", "dog"]
    assert (counts.train_images, counts.val_images) == (3, 1)


def test_images_may_lie_deeper_and_val_may_be_missing(tmp_path):
    fill(tmp_path, "train/a/x/y/1.jpg", "train/a/2.webp", "train/b/1.tif")
    counts = count_images(tmp_path)
    assert (counts.classes, counts.train_images, counts.val_images) == (["a", "b"], 3, 0)


def test_links_are_followed_under_their_own_name_without_looping(tmp_path):
    fill(tmp_path, "elsewhere/1.jpg", "elsewhere/2.jpg", "train/a/1.jpg")
    (tmp_path / "train" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "train" / "a" / "back").symlink_to(tmp_path / "train" / "a")
    (tmp_path / "train" / "a" / "up").symlink_to(tmp_path / "train")
    counts = count_images(tmp_path)
    assert (counts.classes, counts.train_images) == (["a", "linked"], 3)


def test_what_cannot_be_trained_on_is_named(tmp_path):
    with pytest.raises(ValueError, match="train is no folder"):
        count_images(tmp_path)
    fill(tmp_path, "train/1.jpg")
    with pytest.raises(ValueError, match="train has no class folders"):
        count_images(tmp_path)
    fill(tmp_path, "train/a/1.jpg", "train/c/readme.txt", "train/d/.hidden.jpg")
    with pytest.raises(ValueError, match=r"train/c has no image \(and 1 more classes\)"):
        count_images(tmp_path)
    fill(tmp_path, "train/c/1.jpg", "train/d/1.jpg", "val/a/1.jpg", "val/e/1.jpg")
    with pytest.raises(ValueError, match="val has class 'e', which train/ does not have"):
        count_images(tmp_path)


def test_mock_data_counts(mock_data):
    counts = count_images(mock_data)
    assert (len(counts.classes), counts.train_images, counts.val_images) == (4, 48, 16)
