"""`resnet-acc data ...`: image folders."""

import json
from pathlib import Path
from typing import Annotated

import typer

from resnet_acc.datasets import mock
from resnet_acc.datasets.check import check_folder
from resnet_acc.datasets.mock_options import PRESETS, mock_options, read_options

data_app = typer.Typer(help="Make and check image folders.", no_args_is_help=True, add_completion=False)


@data_app.callback()
def _group() -> None:
    """Make and check image folders."""


@data_app.command("mock")
def make_mock(
    folder: Annotated[
        Path | None,
        typer.Option(help="folder that gets train/ and val/ (none: data/mock_imagenet)", show_default=False),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"{' | '.join(PRESETS)} (none: what the folder was made with, else quick)", show_default=False
        ),
    ] = None,
    classes: Annotated[int | None, typer.Option(help="number of classes", show_default="preset")] = None,
    images_per_class: Annotated[int | None, typer.Option(help="training images a class", show_default="preset")] = None,
    val_images_per_class: Annotated[
        int | None, typer.Option(help="validation images a class", show_default="preset")
    ] = None,
    size: Annotated[int | None, typer.Option(help="average longer edge, in pixels", show_default="preset")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the images", show_default="0")] = None,
    workers: Annotated[
        int | None, typer.Option(help="processes that make images; no effect on them", show_default="one per core")
    ] = None,
    progress: Annotated[bool, typer.Option(help="show a progress bar")] = True,
) -> None:
    """Make mock ImageNet, or complete it; what is there already is not touched.

    Presets: quick has 10 classes of 48 + 10 small images; imagenet-like 1000 classes of 10 + 2 images of about
    500 x 400 pixels.
    """
    folder = mock.default_folder() if folder is None else folder
    values = (classes, images_per_class, val_images_per_class, size, seed)
    try:
        options = None
        if preset is None and all(value is None for value in values):
            options = read_options(folder)
        if options is None:
            options = mock_options(
                preset or "quick",
                classes=classes,
                images_per_class=images_per_class,
                val_images_per_class=val_images_per_class,
                size=size,
                seed=0 if seed is None else seed,
            )
        summary = mock.make_with_options(folder, options, workers=workers, progress=progress)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    done = (
        f"{summary.written_images} written ({summary.written_bytes / 1e6:,.1f} MB) in {summary.seconds:.1f} s"
        if summary.written_images
        else "nothing was missing"
    )
    typer.echo(
        f"{summary.folder}: {options.classes} classes, {summary.train_images} training and "
        f"{summary.val_images} validation images; {done}"
    )


@data_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="folder that holds train/ and val/", show_default=False)],
    workers: Annotated[
        int | None, typer.Option(help="processes that decode images", show_default="one per core")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the whole report as one JSON object")] = False,
    progress: Annotated[bool, typer.Option(help="show a progress bar")] = True,
) -> None:
    """Look at every image of a folder as training would read it, and name what is wrong by its full path.

    Exit status: 0 nothing wrong, 1 problems found, 2 no such folder or the check itself failed.
    """
    try:
        report = check_folder(folder, workers=workers, progress=progress)
    except (ValueError, OSError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(json.dumps(report.values(), indent=2, allow_nan=False) if as_json else report.text())
    if not report.ok:
        raise typer.Exit(1)
