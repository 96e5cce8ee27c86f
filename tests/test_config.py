"""RunConfig: what it takes, what it refuses, and that it survives JSON and the command line."""

import json
import math

import pytest
from torchvision.models import list_models

from resnet_acc.config import ARMS, MODELS, PRESETS, RunConfig, preset_config


def test_article_command_is_the_torchacc_arm() -> None:
    config = RunConfig(nproc_per_node=8, amp_level="O1", compiler_opt=True, batch_size=128)
    assert (config.arm, config.suffix, config.global_batch_size) == ("torchacc", "torchacc_x8", 1024)
    assert config.tag("h200") == "h200_O1_bs128"


@pytest.mark.parametrize("arm", ARMS)
def test_with_arm_and_json_give_the_same_run_again(arm: str) -> None:
    config = preset_config("quick", data="synthetic", lr=0.5).with_arm(arm, nproc_per_node=2)
    assert config.arm == arm
    assert config.suffix == f"{arm}_x2"
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid(preset: str) -> None:
    assert preset_config(preset).warmup_steps >= 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nproc_per_node": 0}, ["nproc_per_node", "0", "at least 1"]),
        ({"nproc_per_node": -1}, ["-1"]),
        ({"nproc_per_node": True}, ["True", "int"]),
        ({"batch_size": "64"}, ["batch_size", "'64'", "int"]),
        ({"batch_size": 64.5}, ["64.5"]),
        ({"amp_level": 1}, ["amp_level", "1", "str"]),
        ({"amp_level": "O2"}, ["O2", "O0, O1"]),
        ({"compiler_opt": "false"}, ["compiler_opt", "'false'", "bool"]),
        ({"compiler": "inductor"}, ["inductor", "--compiler-opt"]),
        ({"compiler_opt": True, "kernel_opt": True}, ["compiler_opt", "kernel_opt"]),
        ({"amp_dtype": "float16"}, ["float16", "O1"]),
        ({"lr": math.nan}, ["lr", "nan"]),
        ({"lr": -0.1}, ["lr", "-0.1"]),
        ({"weight_decay": math.inf}, ["weight_decay", "inf"]),
        ({"image_size": 31}, ["31", "32"]),
        ({"model": "../../etc/passwd"}, ["passwd", "resnet50"]),
        ({"model": "resnet5"}, ["'resnet5'", "resnet50"]),
        ({"model": "vgg16"}, ["vgg16"]),
        ({"data": " "}, ["data"]),
        ({"warmup_steps": 20, "max_steps": 10}, ["20", "10", "0 steps after warm-up"]),
        ({"warmup_steps": 10, "max_steps": 10}, ["0 steps after warm-up"]),
        ({"node_rank": 1}, ["node_rank", "nnodes"]),
        ({"nnodes": 2}, ["master_addr"]),
        ({"master_port": 65536}, ["65536"]),
        ({"device": "gpu"}, ["gpu", "cuda"]),
        ({"seed": 2**32}, ["seed"]),
    ],
)
def test_bad_values_are_named_with_a_mend(values: dict, words: list[str]) -> None:
    with pytest.raises(ValueError, match="; |give|choose") as caught:
        RunConfig(**values)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_models_are_torchvisions_resnets() -> None:
    assert set(MODELS) == {name for name in list_models() if name.startswith(("resnet", "resnext", "wide_resnet"))}


def test_whole_floats_and_ints_for_floats_are_taken() -> None:
    config = RunConfig(batch_size=64.0, lr=1)  # type: ignore[arg-type]
    assert (config.batch_size, type(config.batch_size)) == (64, int)
    assert (config.lr, type(config.lr)) == (1.0, float)


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="'bacth_size'; did you mean batch_size"):
        RunConfig.from_json({"bacth_size": 64})


def test_one_step_after_warmup_is_allowed() -> None:
    assert RunConfig(warmup_steps=9, max_steps=10).warmup_steps == 9


def test_tag_tells_apart_what_cannot_be_compared() -> None:
    tags = {
        config.tag("cpu")
        for config in (
            RunConfig(),
            RunConfig(image_size=64),
            RunConfig(data="synthetic"),
            RunConfig(data="/somewhere/<script> photos"),
            RunConfig(amp_level="O1"),
            RunConfig(amp_level="O1", amp_dtype="float16"),
        )
    }
    assert len(tags) == 6
    assert all(set(tag) <= set("abcdefghijklmnopqrstuvwxyzO0123456789_.-") for tag in tags)
