"""traverse and plot, as the article's last cell uses them."""

import math
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic_runs import write_run
from test_parser import config_of, write_log

from resnet_acc.log_parser import parse_file
from resnet_acc.plot import plot, traverse

ARTICLE_CELL = """
import os
from resnet_acc.plot import plot, traverse
from resnet_acc.log_parser import parse_file
#import seaborn as sns

if __name__ == '__main__':
    path = "output"
    file_names = {}
    traverse(path, file_names)

    for model, tags in file_names.items():
        for tag, suffixes in tags.items():
            title = model + "_" + tag
            label = []
            api_data = []
            for suffix, o_suffixes in suffixes.items():
                label.append(suffix)
                for output_suffix, node_ranks in o_suffixes.items():
                    assert "0" in node_ranks
                    assert "log" in node_ranks["0"]
                    parse_data = parse_file(node_ranks["0"]["log"])
                    api_data.append(parse_data)
            
            plot(title, label, api_data)
"""


def texts(figure: object) -> str:
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def run_cell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.chdir(folder)
    shown: dict[str, object] = {}
    monkeypatch.setattr("resnet_acc.plot._show", lambda figure: shown.setdefault("figure", figure))
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(ARTICLE_CELL, "cell", "exec"), names)
    return {**names, **shown}


def test_the_articles_cell_draws_runs_of_every_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, output = config_of(warmup_steps=1), tmp_path / "output"
    for arm, time in (("eager", 0.2), ("kernel", 0.1), ("torchacc", 0.4)):
        write_run(output, config.with_arm(arm), [1.0] + [time] * 6)
    names = run_cell(tmp_path, monkeypatch)
    figures = output / "figures"
    assert sorted(p.name for p in figures.iterdir()) == ["resnet50_cpu_O0_bs64.png", "resnet50_cpu_O0_bs64.svg"]
    assert (figures / "resnet50_cpu_O0_bs64.png").read_bytes().startswith(b"\x89PNG")
    ElementTree.parse(figures / "resnet50_cpu_O0_bs64.svg")
    drawn = texts(names["figure"])
    assert "640.0\n2.00× eager" in drawn
    assert "160.0\n0.50× eager, 0.25× kernel" in drawn
    assert "64 images per process, 64 in all on 1 process" in drawn


def test_the_articles_cell_with_repeats_and_with_runs_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, output = config_of(), tmp_path / "output"
    for repeat, time in enumerate((0.1, 0.1, 0.1)):
        write_run(output, config, [time] * 4, run_id=f"r{repeat}")
        write_run(output, config.with_arm("kernel"), [time / 2] * 4, run_id=f"r{repeat}")
    write_run(output, config, [0.001] * 4, run_id="r9", status="failed", status_values={"reason": "out of memory"})
    write_run(output, config.with_arm("inductor"), [0.001] * 4, status="interrupted")
    names = run_cell(tmp_path, monkeypatch)
    assert (len(names["label"]), len(names["api_data"])) == (3, 8)  # type: ignore[arg-type]
    drawn = texts(names["figure"])
    assert "640.0" in drawn
    assert "1,280" in drawn
    assert "2.00× eager" in drawn
    assert "Not shown: eager, 1 process, run r9: failed: out of memory" in drawn
    assert "Not shown: inductor, 1 process" in drawn
    bars = [text.get_text() for text in names["figure"].axes[0].get_yticklabels()]  # type: ignore[attr-defined]
    assert bars == ["eager, 1 process", "kernel, 1 process"]


def test_a_run_too_short_for_a_rate_has_no_bar(tmp_path: Path) -> None:
    run = parse_file(write_run(tmp_path, config_of(warmup_steps=20), [0.1] * 10) / "0" / "log")
    figure = plot("short", ["eager_x1"], [run])
    assert len(figure.axes[0].patches) == 0
    assert "n/a (0 steps after warm-up)" in texts(figure)


def test_losses_that_are_all_nan_stand_beside_a_good_run(tmp_path: Path) -> None:
    config = config_of()
    bad = parse_file(write_run(tmp_path, config, [0.1] * 5, [math.nan] * 5) / "0" / "log")
    good = parse_file(write_run(tmp_path, config.with_arm("kernel"), [0.1] * 5) / "0" / "log")
    for runs in ([bad, good], [bad]):
        drawn = texts(plot("nan", [], runs))
        assert "loss not finite in 5 of 5 records" in drawn
        assert "not finite, or off scale" in drawn
    assert (tmp_path / "figures" / "nan.png").stat().st_size > 10_000


def test_only_failed_runs_or_none_still_give_a_figure(tmp_path: Path) -> None:
    run = parse_file(write_run(tmp_path, config_of(), [0.1] * 5, status="failed") / "0" / "log")
    assert "Not shown" in texts(plot("failed", ["eager_x1"], [run]))
    assert "No runs." in texts(plot("nothing", [], []))


def test_a_missing_rank_is_said_in_the_figure(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(nproc_per_node=2), [0.1] * 5, ranks=[0])
    assert "1 of 2 ranks" in texts(plot("t", [], [parse_file(run_dir / "0" / "log")]))


def test_several_process_counts_add_scaling(tmp_path: Path) -> None:
    runs = [
        parse_file(write_run(tmp_path, config_of(nproc_per_node=num), [0.1 * time] * 5) / "0" / "log")
        for num, time in ((1, 1.0), (2, 1.25))
    ]
    figure = plot("scaling", [], runs)
    assert "Scaling over processes" in texts(figure)
    assert "80 %" in texts(figure)


def test_labels_name_runs_that_do_not_know_their_arm(tmp_path: Path) -> None:
    line = "INFO metrics epoch=0 step={} batch_size=8 loss=1.0 batch_time_s=0.1 samples_per_s=80.0 peak_mem_gib=1.0\n"
    text = "".join("2026-12-01 12:00:00,123 " + line.format(step) for step in (1, 2, 3))
    runs = [parse_file(write_log(tmp_path / name, text)) for name in "ab"]
    figure = plot("foreign", ["mine", "theirs"], runs)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["mine", "theirs"]


def test_the_articles_cell_with_suffixes_of_another_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "INFO metrics epoch=0 step={} batch_size=8 loss=1.0 batch_time_s=0.1 samples_per_s=80.0 peak_mem_gib=1.0\n"
    text = "".join("2026-12-01 12:00:00,123 " + line.format(step) for step in (1, 2, 3))
    for place in ("base/r1", "base/r2", "opt/r1"):
        write_log(tmp_path / "output" / "resnet50" / "v100_O1" / place, text)
    names = run_cell(tmp_path, monkeypatch)
    bars = [text.get_text() for text in names["figure"].axes[0].get_yticklabels()]  # type: ignore[attr-defined]
    assert bars == ["base", "opt"]
    assert (tmp_path / "output" / "figures" / "resnet50_v100_O1.png").is_file()


def test_a_title_stays_in_the_figures_folder_and_no_name_is_a_formula(tmp_path: Path) -> None:
    run = parse_file(write_run(tmp_path, config_of(), [0.1] * 5) / "0" / "log")
    run.arm = "$\\frac$<script>" + "x" * 300
    plot("../../escaped $x$", [], [run])
    assert [p.name for p in sorted((tmp_path / "figures").iterdir())] == ["escaped_x.png", "escaped_x.svg"]


def test_no_arm_is_told_apart_by_colour_alone(tmp_path: Path) -> None:
    config = config_of()
    arms = ("eager", "kernel", "inductor", "torchacc")
    runs = [parse_file(write_run(tmp_path, config.with_arm(arm), [0.1] * 5) / "0" / "log") for arm in arms]
    figure = plot("looks", [], runs)
    hatches = [patch.get_hatch() for patch in figure.axes[0].patches if patch.get_fill()]
    assert len(set(hatches)) == 4
    for axes in figure.axes[2:4]:
        markers = {line.get_marker() for line in axes.get_lines() if line.get_marker() not in ("None", "x")}
        assert len(markers) == 4


def test_a_notebook_shows_the_figure_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    from IPython.core import display_functions

    class Shell:
        kernel = object()
        execution_count = 7

    shown: list[object] = []
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr(IPython.display, "display", lambda value: shown.append(value))
    monkeypatch.setattr(display_functions, "display", lambda value: shown.append(value))
    run = parse_file(write_run(tmp_path, config_of(), [0.1] * 5) / "0" / "log")
    figure = plot("once", [], [run])
    assert len(shown) == 1
    figure._ipython_display_()  # type: ignore[attr-defined]  # what IPython does with the value of the same cell
    assert len(shown) == 1
    Shell.execution_count = 8
    figure._ipython_display_()  # type: ignore[attr-defined]
    assert len(shown) == 2
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_traverse_finds_logs_and_passes_over_the_rest(tmp_path: Path) -> None:
    output = tmp_path / "output"
    run_dir = write_run(output, config_of(), [0.1] * 2)
    write_run(output, config_of(), [0.1] * 2, run_id="no-rank-0", ranks=[])
    suffix = run_dir.parent
    for junk in ("comparisons/a/b/c/0", "figures/a/b/c/0", ".hidden/a/b/c/0", "resnet50/.ipynb_checkpoints/b/c/0"):
        (output / junk).mkdir(parents=True)
        (output / junk / "log").write_text("")
    (run_dir / "00").mkdir()
    (run_dir / "00" / "log").write_text("")
    (output / "README").write_text("")
    (suffix / "latest").symlink_to(run_dir)
    (output / "loop").symlink_to(output)
    (suffix / "loop").symlink_to(suffix)
    (suffix / "broken").symlink_to(tmp_path / "nowhere")
    found: dict[str, object] = {}
    traverse(str(output), found)
    expected = {"0": {"log": str(run_dir / "0" / "log")}}
    assert found == {"resnet50": {"cpu_O0_bs64": {"eager_x1": {"20261201-115300-000001": expected}}}}


def test_traverse_names_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder no_such_output"):
        traverse("no_such_output", {})


def test_a_relative_folder_is_looked_for_in_the_repository_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "root" / "output", config_of(), [0.1] * 2)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr("resnet_acc.results.runs.project_root", lambda: tmp_path / "root")
    found: dict[str, object] = {}
    traverse("output", found)
    assert list(found) == ["resnet50"]
    assert os.getcwd() == str(tmp_path / "notebooks")
