"""Batches of notebooks before they run: YAML files, -p options, names and types, devices, and the size of a page."""

import base64
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from launch_tools import CPU_ENVIRONMENT, gpus, gpus_for_xla
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from resnet_acc.launch import preflight
from resnet_acc.notebooks import found, page
from resnet_acc.notebooks.checks import check_types, check_values
from resnet_acc.notebooks.cut import Budget, cut_outputs
from resnet_acc.notebooks.devices import Devices, num_asked, visible_gpus
from resnet_acc.notebooks.found import Notebook, find_notebook
from resnet_acc.notebooks.run import describe_notebooks, run_command_line
from resnet_acc.notebooks.sweep import MAX_SETS, Sweep, read_sweep
from resnet_acc.notebooks.yaml_file import read_yaml

PARAMETERS = """# Parameters
size = 3  # how many
rate = 0.1  # a float
name = "a"  # a text
fail = False  # whether
limit: int | None = None  # a number, or none
arms = ["eager", "kernel"]  # a list of texts
"""


def write_notebook(path: Path, *cells: str, parameters: str | None = PARAMETERS) -> Path:
    """A notebook with a title, a parameters cell and these code cells."""
    first = [] if parameters is None else [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    code = [new_code_cell(source) for source in cells]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=[new_markdown_cell("# Small"), *first, *code], metadata={"kernelspec": kernel})
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one notebook in it."""
    write_notebook(tmp_path / "small.ipynb", "print(size)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep_of(folder: Path, text: str, *options: str) -> Sweep:
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return check_types(read_sweep("sweep.yaml", options), lambda line: None)


def test_sets_grids_and_options_combine(folder: Path) -> None:
    sweep = sweep_of(
        folder,
        """
notebook: small.ipynb
parameters: {rate: 1, fail: false}
grid: {size: [1, 2]}
sets:
  - {name: first, parameters: {name: b}}
  - {name: second, grid: {arms: ["eager", "eager,kernel"]}}
  - {name: third, parameters: {size: 9}}
""",
    )
    assert [one.parameters for one in sweep.sets] == [
        {"rate": 1.0, "fail": False, "name": "b", "size": 1},
        {"rate": 1.0, "fail": False, "name": "b", "size": 2},
        {"rate": 1.0, "fail": False, "size": 1, "arms": ["eager"]},
        {"rate": 1.0, "fail": False, "size": 1, "arms": ["eager", "kernel"]},
        {"rate": 1.0, "fail": False, "size": 2, "arms": ["eager"]},
        {"rate": 1.0, "fail": False, "size": 2, "arms": ["eager", "kernel"]},
        {"rate": 1.0, "fail": False, "size": 9},
    ]
    assert isinstance(sweep.sets[0].parameters["rate"], float)
    assert len(set(sweep.stems)) == 7
    over = sweep_of(folder, "notebook: small.ipynb\ngrid: {size: [1, 2]}\n", "size=7", "name=x", "name=y")
    assert [one.parameters for one in over.sets] == [{"size": 7, "name": "x"}, {"size": 7, "name": "y"}]
    assert [one.name for one in over.sets] == ["name=x", "name=y"]


def test_two_sets_of_one_name_are_told_apart_and_keep_their_own_files(folder: Path) -> None:
    sweep = sweep_of(
        folder,
        "notebook: small.ipynb\nsets:\n"
        "  - {name: run/../x, parameters: {size: 1}}\n  - {name: run/../x, parameters: {size: 1}}\n",
    )
    assert len({one.name for one in sweep.sets}) == 2
    assert len(set(sweep.stems)) == 2
    assert all(re.fullmatch(r"[\w.=-]+", stem) and not stem.startswith(".") for stem in sweep.stems)


def test_options_become_what_the_notebook_declares(folder: Path) -> None:
    options = ["size=0x", "size=12", "rate=1e-3", "fail=true", "limit=None", "limit=5", "name=12", "arms=eager,kernel"]
    values = [one.parameters for one in check_types(read_sweep("small.ipynb", options[1:]), print).sets]
    assert values == [
        {"size": 12, "rate": 1e-3, "fail": True, "limit": limit, "name": "12", "arms": ["eager", "kernel"]}
        for limit in (None, 5)
    ]
    with pytest.raises(ValueError, match="size is '0x'"):
        check_types(read_sweep("small.ipynb", options[:1]), print)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("notebook: [1", "line 1"),
        ("", "holds no mapping"),
        ("- 1\n- 2\n", "holds no mapping"),
        ("notebook: small.ipynb\nparameters: {size: 1, size: 2}\n", "'size' stands twice"),
        ("notebook: small.ipynb\nset:\n  - {}\n", "sets"),
        ("notebook: small.ipynb\nsize: 3\n", "below 'parameters' or 'grid'"),
        ("notebook: small.ipynb\nsets: []\n", "sets is []"),
        ("notebook: small.ipynb\nsets: [3]\n", "set 1 is 3"),
        ("notebook: small.ipynb\nsets: [{xname: x}]\n", "did you mean name"),
        ("notebook: small.ipynb\nsets: [{name: []}]\n", "name is []"),
        ("notebook: small.ipynb\nparameters: [size]\n", "parameters is ['size']"),
        ("notebook: small.ipynb\ngrid: {size: 3}\n", "give a list"),
        ("notebook: small.ipynb\ngrid: {size: []}\n", "give a list"),
        ("notebook: other.ipynb\n", "no notebook at"),
        ("notebook: nn\n", "'nn' is no notebook's name"),
        ("notebook: 3\n", "give its name in quotes"),
        ("notebook: small.ipynb\nparameters: {sizex: 3}\n", "did you mean size?"),
        ("notebook: small.ipynb\nparameters: {size: '3'}\n", "size is '3' (str); give int"),
        ("notebook: small.ipynb\nparameters: {size: 3.5}\n", "size is 3.5"),
        ("notebook: small.ipynb\nparameters: {size: true}\n", "size is True"),
        ("notebook: small.ipynb\nparameters: {size: null}\n", "size is None"),
        ("notebook: small.ipynb\nparameters: {rate: .nan}\n", "finite"),
        ("notebook: small.ipynb\nparameters: {fail: no}\n", "fail is 'no'"),
        ("notebook: small.ipynb\nparameters: {name: 007}\n", "name is 7"),
        ("notebook: small.ipynb\nparameters: {limit: x}\n", "limit is 'x'"),
        ("notebook: small.ipynb\nparameters: {arms: []}\n", "arms is []"),
        ("notebook: small.ipynb\nparameters: {arms: [eager, 3]}\n", "3"),
        ("notebook: small.ipynb\nparameters: {size: {a: 1}}\n", "size is {'a': 1}"),
        ("notebook: small.ipynb\nparameters: {size: !!python/object/apply:os.getcwd []}\n", "python/object"),
        ("notebook: small.ipynb\nparameters: {size: *there}\n", "there"),
        ("notebook: small.ipynb\nparameters: {size: 2026-01-01x}\n", "2026-01-01x"),
    ],
)
def test_what_a_file_says_wrong_is_refused_in_one_line(folder: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        sweep_of(folder, text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["size"], "-p 'size' has no value"),
        (["=3"], "-p '=3' has no value"),
        (["sizex=3"], "did you mean size?"),
        (["size=three"], "size is 'three'"),
        (["size=99999999999999999999999999999999"], "size"),
        (["fail=yes"], "fail is 'yes'"),
        ([f"size={n}" for n in range(MAX_SETS + 1)], f"more than {MAX_SETS}"),
    ],
)
def test_what_an_option_says_wrong_is_refused(folder: Path, options: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        check_types(read_sweep("small.ipynb", options), lambda line: None)


def test_all_that_is_wrong_is_said_at_once(folder: Path) -> None:
    said: list[str] = []
    (folder / "s.yaml").write_text(
        "notebook: small.ipynb\nsets:\n- {name: good}\n- {name: bad, parameters: {size: x, xname: 1}}\n"
    )
    with pytest.raises(ValueError, match=r"nothing was run: .*1 more"):
        check_types(read_sweep("s.yaml", []), said.append)
    assert any("set bad" in line and "size is 'x'" in line for line in said)
    assert any("set bad" in line and "did you mean name?" in line for line in said)
    assert not any("good" in line for line in said)


def test_yaml_is_of_version_1_2(folder: Path) -> None:
    (folder / "v.yaml").write_text(
        "a: 010\nb: 1e-3\nc: no\nd: 'no'\ne: null\nf: 2026-01-01\ng: 1_000\nh: true\n", encoding="utf-8"
    )
    whole = {"a": 10, "b": 1e-3, "c": "no", "d": "no", "e": None, "f": "2026-01-01", "g": "1_000", "h": True}
    assert read_yaml(folder / "v.yaml") == whole
    (folder / "v.yaml").write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ValueError, match="UTF-8"):
        read_yaml(folder / "v.yaml")


def test_a_notebook_that_is_none_or_declares_nothing(folder: Path) -> None:
    (folder / "torn.ipynb").write_text('{"cells": [')
    with pytest.raises(ValueError, match=r"torn\.ipynb is no notebook"):
        read_sweep("torn.ipynb", [])
    write_notebook(folder / "bare.ipynb", "print(1)", parameters=None)
    assert len(check_types(read_sweep("bare.ipynb", []), print).sets) == 1
    with pytest.raises(ValueError, match="no cell tagged parameters"):
        check_types(read_sweep("bare.ipynb", ["size=1"]), print)
    write_notebook(folder / "computed.ipynb", parameters="# Parameters\nsize = 1 + x\n")
    with pytest.raises(ValueError, match="plain literal"):
        check_types(read_sweep("computed.ipynb", ["size=1"]), print)


def test_names_of_the_tutorials_notebooks(repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_notebook("01") == repository / "notebooks" / "01_resnet50.ipynb"
    lines = list(describe_notebooks())
    assert any(line.startswith("01_resnet50: ") for line in lines)
    assert any(re.match(r" +batch_size = .+  # ", line) for line in lines)
    write_notebook(folder / "smaller.ipynb")
    monkeypatch.setattr(found, "notebooks_folder", lambda: folder)
    assert find_notebook("small") == folder / "small.ipynb"
    with pytest.raises(ValueError, match="'sm' fits several notebooks: small, smaller"):
        find_notebook("sm")


def test_the_notebooks_own_cell_refuses_before_anything_runs() -> None:
    sweep = read_sweep("01", ["arms=eager", "arms=eager,fast", "repeats=0"])
    said: list[str] = []
    with pytest.raises(ValueError, match="nothing was run"):
        check_values(check_types(sweep, print), CPU_ENVIRONMENT, said.append)
    good = check_types(read_sweep("01", ["preset=quick", "batch_size=8", "batch_size=16"]), print)
    check_values(good, CPU_ENVIRONMENT, said.append)
    assert any("'fast'" in line or "repeats is 0" in line for line in said)


@pytest.mark.parametrize(
    ("jobs", "timeout", "words"), [("0", None, "jobs is '0'"), ("1.5", None, "'1.5'"), (None, "-3", "timeout is '-3'")]
)
def test_options_of_the_batch_are_refused(folder: Path, jobs: str | None, timeout: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        run_command_line("small.ipynb", [], folder / "to", jobs, timeout, dry_run=False, command="")
    assert not (folder / "to").exists()


def test_dry_run_shows_every_set_and_makes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "probe", lambda **_: CPU_ENVIRONMENT)
    to = folder / "to"
    options = ["size=1", "size=2", "fail=true"]
    assert run_command_line("small.ipynb", options, to, None, None, dry_run=True, command="") == 0
    shown = capsys.readouterr().out
    assert "2 parameter sets" in shown
    assert "01_size-1: size=1: size=1, fail=True" in shown
    assert not to.exists()


def test_gpus_go_to_sets_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_asked({"processes": "1,2"}, 4) == 2
    assert num_asked({"nproc_per_node": 8}, 4) == 4
    assert num_asked({"size": 1}, 4) == 4
    assert num_asked({"processes": 1}, 0) == 0
    devices = Devices(["0", "1", "2"])
    assert devices.most_at_once == 3
    assert devices.take(2) == ["0", "1"]
    assert devices.take(2) is None
    assert devices.take(1) == ["2"]
    devices.give_back(["0", "1"])
    assert devices.take(1) == ["0"]
    one = Devices([])
    assert (one.take(0), one.take(0), one.most_at_once) == ([], None, 1)
    two = Devices([], 2)
    assert (two.take(0), two.take(0), two.take(0)) == ([], [], None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(CPU_ENVIRONMENT) == []
    assert visible_gpus(gpus(2)) == visible_gpus(gpus_for_xla(2)) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")
    assert visible_gpus(gpus(2)) == ["3", "GPU-5f"]


def picture(side: int) -> str:
    """A PNG of noise, which cannot be packed, in base64."""
    stream = io.BytesIO()
    Image.frombytes("RGB", (side, side), os.urandom(3 * side * side)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode("ascii")


def page_of(cells: list[Any], **heading: Any) -> str:
    values = {"title": "T <i>", "status": "ok", "parameters": {"name": "<b>"}, **heading}
    return page.write_page(new_notebook(cells=cells), page.Heading(**values), Path("."))


def displayed(**data: Any) -> Any:
    return new_output("display_data", {name.replace("_", "/", 1): value for name, value in data.items()})


@pytest.mark.parametrize(
    "outputs",
    [
        [new_output("stream", name="stdout", text="x<&\x1b[31m" * 2_000_000)],
        [new_output("stream", name="stdout", text=f"line {n}\n" * 900) for n in range(500)],
        [displayed(text_plain=f"{n}") for n in range(500)],
        [displayed(image_png=picture(700)) for _ in range(4)],
        [displayed(text_html="<table>" + "<tr><td>&amp;</td></tr>" * 400_000 + "</table>")],
        [new_output("error", ename="E", evalue="v", traceback=["\x1b[31m<>" * 900_000])],
    ],
    ids=["text", "lines", "outputs", "pictures", "html", "traceback"],
)
def test_a_page_stays_small_and_says_what_it_left_out(outputs: list[Any]) -> None:
    whole = page_of([new_code_cell("x = 1", outputs=outputs), new_markdown_cell("## After")])
    assert len(whole.encode()) < 3_000_000
    assert "Left out, so that this page stays small" in whole
    assert "cell 1" in whole.partition("<main>")[0]


def test_a_page_that_fits_has_all_of_it() -> None:
    small = picture(40)
    whole = page_of([new_code_cell("hidden_code()", outputs=[displayed(image_png=small)]), new_markdown_cell("## End")])
    assert small in whole
    assert "Left out" not in whole
    assert "hidden_code" not in whole
    assert "T &lt;i&gt;" in whole
    assert "&lt;b&gt;" in whole


def test_nothing_in_a_page_is_fetched_or_runs() -> None:
    html = (
        "<script>alert(1)</script><script src='https://x.org/a.js'></script><img src=https://x.org/a.png onerror=a()>"
        "<link rel=stylesheet href=https://x.org/a.css><iframe src='https://x.org'></iframe><b>kept</b>"
        "<div style=\"background:url(https://x.org/b.png)\">styled</div><style>@import 'https://x.org/c.css'</style>"
    )
    cells = [
        new_markdown_cell(f"![p](https://x.org/p.png) [link](https://x.org/page)\n\n{html}"),
        new_code_cell("1", outputs=[displayed(text_html=html), displayed(**{"image_svg+xml": f"<svg>{html}</svg>"})]),
        new_code_cell("1", outputs=[displayed(application_javascript="fetch('https://x.org')", text_plain="plain")]),
    ]
    whole = page_of(cells)
    tags = re.findall(r"<(script|iframe|link|object|embed|img|video|audio|source)\b([^>]*)", whole, re.IGNORECASE)
    assert {name.lower() for name, _ in tags} <= {"img"}
    assert all(re.search(r'src="data:image/', rest) for _, rest in tags if "src" in rest)
    assert not re.search(r"url\(|@import(?![^<]*&lt;)", whole.partition("<main>")[2].replace("&lt;style", ""))
    assert "<b>kept</b>" in whole
    assert 'href="https://x.org/page"' in whole
    assert "default-src 'none'" in whole


def test_progress_bars_and_runs_of_text_are_shown_as_on_a_screen() -> None:
    lines = [new_output("stream", name="stdout", text=f"\r{n} %") for n in range(100)]
    budget = Budget(10_000, 1_000)
    (kept,) = cut_outputs([*lines, new_output("stream", name="stdout", text="\ndone\n")], "cell 1", budget)
    assert kept["text"] == "99 %\ndone\n"
    assert budget.cuts == []


def test_a_notebook_with_another_language_is_refused(folder: Path) -> None:
    content = json.loads((folder / "small.ipynb").read_text())
    content["metadata"]["kernelspec"]["language"] = "R"
    (folder / "r.ipynb").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="'R'"):
        Notebook.read(folder / "r.ipynb")
