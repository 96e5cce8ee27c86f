"""The command line: spellings, defaults, refusals, and that it gives a configuration back."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet_acc import launch_single_task
from resnet_acc.config import ARMS, PRESETS, RunConfig, preset_config
from resnet_acc.launch import supervisor
from resnet_acc.launch.options import OptionError, build_parser, parse


def config_of(*arguments: str) -> RunConfig:
    return parse(build_parser("launch", "test"), arguments).config


def test_the_article_command() -> None:
    config = config_of("--nproc_per_node=8", "--amp_level=O1", "--compiler-opt", "--batch_size=128")
    assert config == RunConfig(nproc_per_node=8, amp_level="O1", compiler_opt=True, batch_size=128)


@pytest.mark.parametrize("spec", dataclasses.fields(RunConfig), ids=lambda spec: spec.name)
def test_every_field_is_an_option_in_both_spellings_with_its_default_in_the_help(spec: dataclasses.Field) -> None:
    samples = {
        "amp_dtype": {"amp_level": "O1", "amp_dtype": "bfloat16"},
        "compiler": {"compiler_opt": True, "compiler": "inductor"},
        "node_rank": {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1"},
        "nnodes": {"nnodes": 2, "master_addr": "10.0.0.1"},
        "amp_level": {"amp_level": "O1"},
        "device": {"device": "cpu"},
        "bad_images": {"bad_images": "skip"},
        "rdzv_backend": {"rdzv_backend": "c10d"},
        "rdzv_endpoint": {"rdzv_endpoint": "10.0.0.1:29400"},
        "rdzv_id": {"rdzv_id": "job7"},
        "lr_schedule": {"lr_schedule": "cosine"},
        "model": {"model": "resnet18"},
        "resume": {"resume": "auto"},
        "data": {"data": "/some/folder"},
        "output": {"output": "/some/where"},
        "master_addr": {"master_addr": "10.0.0.1"},
    }
    kind = type(spec.default) if spec.default is not None else int
    plain = {"int": 64, "float": 0.5, "bool": not spec.default}
    values = samples.get(spec.name) or {spec.name: plain[kind.__name__]}
    for dash in ("-", "_"):
        arguments = []
        for name, value in values.items():
            prefix = "--no-" if value is False else "--"
            option = (prefix + name).replace("-", dash).replace("_", dash).replace(dash * 2, "--", 1)
            arguments += [option] if isinstance(value, bool) else [option, str(value)]
        assert config_of(*arguments) == RunConfig(**values)
    text = " ".join(build_parser("launch", "test").format_help().split())
    shown = {True: "yes", False: "no", None: "none"}.get(spec.default, spec.default)
    assert (
        f"(default: {shown})"
        in text[text.index(f"--{spec.name.replace('_', '-')}" if kind is bool else f"--{spec.name} ") :]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc_per_node=0"], ["nproc_per_node is 0", "at least 1"]),
        (["--nproc_per_node", "-1"], ["nproc_per_node is -1", "at least 1"]),
        (["--nproc-per-node=2.5"], ["'2.5'", "whole number"]),
        (["--nproc_per_node=abc"], ["'abc'", "whole number"]),
        (["--nproc_per_node="], ["''", "whole number"]),
        (["--nproc_per_node=1_0"], ["'1_0'"]),
        (["--nproc_per_node"], ["--nproc_per_node", "needs a value"]),
        (["--seed", "--validate"], ["--seed", "needs a value"]),
        (["--lr", "-1e-3"], ["lr is -0.001"]),
        (["--lr=nan"], ["'nan'", "number"]),
        (["--lr=fast"], ["'fast'"]),
        (["--amp_level=O3"], ["'O3'", "O0, O1"]),
        (["--preset=fast"], ["'fast'", *PRESETS]),
        (["--bacth_size=64"], ["--bacth_size", "did you mean --batch_size"]),
        (["--batch=64"], ["--batch", "did you mean --batch_size"]),  # no abbreviations
        (["--nproc", "2"], ["--nproc", "did you mean --nproc_per_node"]),
        (["--compiler-opt=false"], ["--compiler-opt=false", "takes none"]),
        (["-x"], ["-x"]),
        (["train"], ["'train'"]),
        (["--compiler-opt", "true"], ["'true'"]),
        (["--compiler=inductor"], ["inductor", "--compiler-opt"]),
        (["--preset=article", "--max_steps=10"], ["warmup_steps is 20", "max_steps 10"]),
    ],
)
def test_refusals_are_one_line_with_value_and_mend(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "launch", pytest.fail)
    assert launch_single_task.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    for word in words:
        assert word in line


def test_the_last_of_two_counts() -> None:
    assert config_of("--batch_size=1", "--batch-size", "2", "--no-validate", "--validate").batch_size == 2
    assert config_of("--validate", "--no_validate").validate is False


def test_none_is_the_way_back_from_a_preset() -> None:
    assert config_of("--preset=article", "--max_steps=none").max_steps is None
    assert config_of("--preset", "quick") == preset_config("quick")


def test_relative_folders_hang_on_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of("--output=runs", "--data=images")
    assert (config.output, config.data) == (str(tmp_path / "runs"), str(tmp_path / "images"))
    assert config_of("--data=mock").data == "mock"


def test_print_config_trains_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_single_task, "launch", pytest.fail)
    assert launch_single_task.main(["--print-config", "--preset=quick", "--seed=3"]) == 0
    printed = RunConfig.from_json(json.loads(capsys.readouterr().out))
    assert dataclasses.replace(printed, output="output") == preset_config("quick", seed=3)


@given(
    arm=st.sampled_from(ARMS),
    values=st.fixed_dictionaries(
        {},
        optional={
            "nproc_per_node": st.integers(1, 64),
            "seed": st.integers(0, 2**32 - 1),
            "lr": st.floats(0, 1e6),
            "weight_decay": st.floats(0, 1.0),
            "max_steps": st.one_of(st.none(), st.integers(1, 10**6)),
            "validate": st.booleans(),
            "workers": st.integers(0, 8),
            "data": st.sampled_from(["synthetic", "mock", "/data/-x=1 '\""]),
        },
    ),
)
def test_arguments_give_the_configuration_again(arm: str, values: dict) -> None:
    config = RunConfig(**values).with_arm(arm)
    assert config_of(*config.to_arguments()) == config


def test_unknown_options_raise_for_callers() -> None:
    with pytest.raises(OptionError):
        config_of("--nope")


def test_importing_the_launcher_imports_no_torch() -> None:
    modules = "resnet_acc, resnet_acc.cli, resnet_acc.launch_single_task, resnet_acc.launch.notebook, "
    modules += (
        "resnet_acc.launch.compare, resnet_acc.launch.parameters, resnet_acc.launch.doctor, resnet_acc.launch.guard"
    )
    code = f"import sys, {modules}; assert not [m for m in sys.modules if m.split('.')[0] in ('torch', 'torch_xla')]"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
