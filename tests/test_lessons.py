"""Scripts that a notebook's cell starts: shown, relayed, ended with the cell and the kernel; and XLA's text, read."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from launch_tools import alive, pids_below, wait_for

from resnet_acc.lessons.script import ScriptFailed, run_script
from resnet_acc.training.lessons.hlo import parse_hlo

DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + "/child", "w").write(str(os.getpid()))
time.sleep(600)
"""
CHILD = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DEAF!r}, sys.argv[1]], start_new_session=True)
open(sys.argv[1] + "/own", "w").write(str(os.getpid()))
time.sleep(600)
"""
"""A script whose child is in a session of its own and deaf to what it is told."""
RANKS = """
import os
if os.environ["RANK"] == "0":
    print('RESULT {"size": ' + os.environ["WORLD_SIZE"] + "}")
"""
ONE_LINERS = {
    "works": "import sys; print('to read'); print('RESULT {\"given\": \"' + sys.argv[1] + '\"}')",
    "fails": "print('before'); raise ValueError('batch is 0')",
    "leaves": "import sys; print('RESULT {}'); sys.exit(1)",
    "silent": "print('nothing more')",
    "no_json": "print('RESULT {half')",
    "a_list": "print('RESULT [1]')",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "ranks": RANKS,
    "second_fails": "import os, time\nif os.environ['RANK'] == '1': raise OSError('disk is full')\ntime.sleep(600)",
    "variable": "import json, os; print('RESULT ' + json.dumps({'seen': os.environ['LESSON']}))",
}


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that python -m finds, and TMPDIR apart from others'."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, code in ONE_LINERS.items():
        (folder / f"script_{name}.py").write_text(code + "\n")
    (folder / "script_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
    (tmp_path / "pids").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def test_result_comes_back_and_the_command_shown_is_the_one_that_runs(scripts: Path, capsys) -> None:
    assert run_script("script_works", ["a b"]) == {"given": "a b"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("$ ")
    assert lines[1:] == ["to read"]  # the result is for the notebook, not for the reader
    again = subprocess.run(["bash", "-c", lines[0][2:]], capture_output=True, text=True, check=True)
    assert again.stdout.splitlines() == ["to read", 'RESULT {"given": "a b"}']
    assert list((scripts / "tmp").iterdir()) == []


def test_variables_are_part_of_the_command(scripts: Path, capsys) -> None:
    assert run_script("script_variable", environment={"LESSON": "two words"}) == {"seen": "two words"}
    shown = capsys.readouterr().out.splitlines()[0]
    assert shown.startswith("$ LESSON='two words' ")
    again = subprocess.run(["bash", "-c", shown[2:]], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout.removeprefix("RESULT ")) == {"seen": "two words"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", "script_fails: ended with exit status 1: ValueError: batch is 0"),
        ("leaves", "ended with exit status 1"),  # a result before the failure is none
        ("silent", "gave no RESULT line"),
        ("no_json", "gave a RESULT that is no JSON"),
        ("a_list", "no JSON object but [1]"),
        ("killed", "was killed by SIGKILL"),
        ("missing", "No module named script_missing"),
    ],
)
def test_failure_says_what_the_script_said(name: str, words: str, scripts: Path) -> None:
    with pytest.raises(ScriptFailed) as caught:
        run_script(f"script_{name}")
    assert words in str(caught.value)
    assert "\n" not in caught.value.reason
    assert list((scripts / "tmp").iterdir()) == []


@pytest.mark.parametrize(("values", "words"), [({"nproc": 0}, "nproc is 0"), ({"timeout_s": 0.0}, "timeout_s is 0")])
def test_bad_values_start_nothing(values: dict, words: str, scripts: Path, capsys) -> None:
    with pytest.raises(ValueError, match=words):
        run_script("script_works", ["x"], **values)
    assert capsys.readouterr().out == ""


def test_timeout_ends_the_script_and_what_it_started(scripts: Path) -> None:
    with pytest.raises(ScriptFailed, match="did not end within 2 s and was stopped"):
        run_script("script_child", [str(scripts / "pids")], timeout_s=2.0)
    assert alive(pids_below(scripts / "pids", 2)) == []


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_cell_ends_the_script_and_what_it_started(times: int, scripts: Path) -> None:
    def interrupt() -> None:
        pids_below(scripts / "pids", 2)
        for _ in range(times):  # an impatient second one must not cut the first one's work short
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_script("script_child", [str(scripts / "pids")])
    finally:
        thread.join()
    assert alive(pids_below(scripts / "pids", 2)) == []
    assert list((scripts / "tmp").iterdir()) == []


def test_killed_kernel_takes_the_script_and_what_it_started_along(scripts: Path) -> None:
    code = f"from resnet_acc.lessons.script import run_script; run_script('script_child', [{str(scripts / 'pids')!r}])"
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    pids = pids_below(scripts / "pids", 2)
    assert alive(pids) == pids
    kernel.kill()
    kernel.wait()
    wait_for(lambda: alive(pids) == [], seconds=30)


@pytest.mark.slow
def test_ranks_by_torchrun_and_the_one_that_failed_is_named(scripts: Path, capsys) -> None:
    assert run_script("script_ranks", nproc=2) == {"size": 2}
    assert "-m torch.distributed.run --standalone" in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(ScriptFailed) as caught:
        run_script("script_second_fails", nproc=2)
    assert "OSError: disk is full" in caught.value.reason
    shown = capsys.readouterr().out
    assert "disk is full" in shown
    assert "Root Cause" not in shown  # torchrun's own report would push the error out of sight


HLO = textwrap.dedent("""\
    HloModule SyncTensorsGraph.9, entry_computation_layout={(f32[8,3,32,32]{3,2,1,0})->(f32[8,4]{1,0}, s32[])}

    %region_0.1 (Arg_0.2: f32[], Arg_1.3: f32[]) -> f32[] {
      %Arg_0.2 = f32[] parameter(0)
      %Arg_1.3 = f32[] parameter(1)
      ROOT %add.4 = f32[] add(f32[] %Arg_0.2, f32[] %Arg_1.3)
    }

    %fused_computation (param_0: bf16[8,4]) -> f32[8,4] {
      %param_0 = bf16[8,4]{1,0} parameter(0)
      %convert.5 = f32[8,4]{1,0} convert(bf16[8,4]{1,0} %param_0)
      %constant.6 = f32[] constant(2)
      %broadcast.7 = f32[8,4]{1,0} broadcast(f32[] %constant.6), dimensions={}
      ROOT %multiply.8 = f32[8,4]{1,0} multiply(f32[8,4]{1,0} %convert.5, f32[8,4]{1,0} %broadcast.7)
    }

    %inner (p: f32[8,4]) -> f32[8,4] {
      %p = f32[8,4]{1,0} parameter(0)
      ROOT %negate.1 = f32[8,4]{1,0} negate(%p)
    }

    ENTRY %SyncTensorsGraph.9 (p0: f32[8,3,32,32]) -> (f32[8,4], s32[]) {
      %p0 = f32[8,3,32,32]{3,2,1,0} parameter(0)
      %p1 = bf16[16,3,3,3]{3,2,1,0} parameter(1)
      %convolution.1 = bf16[8,16,15,15]{3,2,1,0} convolution(%p0, %p1), window={size=3x3}, dim_labels=bf01_oi01->bf01
      %convolution.2 = bf16[8,3,32,32]{3,2,1,0} convolution(%convolution.1, %p1), dim_labels=bf01_01oi->bf01
      %convolution.3 = bf16[3,3,3,16]{3,2,1,0} convolution(%p0, %convolution.1), dim_labels=fb01_io01->01bf
      %cudnn-conv.1 = (f16[8,4]{1,0}, u8[0]{0}) custom-call(%p0, %p1), custom_call_target="__cudnn$convForward"
      %gemm.1 = f16[8,4]{1,0} custom-call(%p0, %p1), custom_call_target="__cublas$gemm"
      %topk.1 = (f32[8,5]{1,0}, s32[8,5]{1,0}) custom-call(%p0), custom_call_target="TopK"
      %dot.1 = bf16[8,4]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}
      %all-reduce.1 = f32[] all-reduce(%dot.1), to_apply=%region_0.1
      %fusion = f32[8,4]{1,0} fusion(bf16[8,4]{1,0} %dot.1), kind=kLoop, calls=%fused_computation
      %call.1 = f32[8,4]{1,0} call(%fusion), to_apply=%inner
      %constant.9 = s32[] constant(1)
      ROOT %tuple.9 = (f32[8,4]{1,0}, s32[]) tuple(%call.1, %constant.9)
    }
    """)


def test_graphs_instructions_are_counted_by_kind() -> None:
    graph = parse_hlo(HLO)
    assert graph.entry == "SyncTensorsGraph.9"
    assert graph.kinds() == {
        "add": 1,
        "convert": 1,
        "broadcast": 1,
        "multiply": 1,
        "negate": 1,
        "convolution": 3,
        "custom-call": 3,
        "dot": 1,
        "all-reduce": 1,
        "fusion": 1,
        "call": 1,
    }
    assert graph.num_convolutions() == 4
    products = [item for item in graph.instructions() if item.is_product]
    assert [(item.name, item.dtype) for item in products] == [
        ("convolution.1", "bf16"),
        ("convolution.2", "bf16"),
        ("convolution.3", "bf16"),
        ("cudnn-conv.1", "f16"),
        ("gemm.1", "f16"),
        ("dot.1", "bf16"),
    ]
    assert [item.is_backward for item in products[:3]] == [False, True, True]


def test_a_fusion_is_one_launch_and_a_call_is_what_it_calls() -> None:
    graph = parse_hlo(HLO)
    launched = [item.name for item in graph.launched()]
    assert launched[-2:] == ["fusion", "negate.1"]
    assert len(launched) == 10
    (fusion,) = (item for item in graph.launched() if item.kind == "fusion")
    assert [item.kind for item in graph.fused(fusion)] == ["convert", "broadcast", "multiply"]


def test_text_without_a_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_hlo("HloModule nothing\n")
