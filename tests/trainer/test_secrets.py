"""No password, key or token reaches files that users share."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import BadInputError
from trainer.launchers.control import new_control
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.load import packaged_examples, recipe_from
from trainer.recipe.source import Source
from trainer.secrets import LEFT_OUT, masked, secrets_in

KEY = "hf_" + "a1B2c3D4e5" * 3


@pytest.mark.parametrize(
    "text",
    [
        f"401 Client Error: invalid token {KEY} for https://huggingface.co",
        f"WANDB_API_KEY={KEY[3:]} and more",
        f"wandb: Invalid --wandb-api-key {KEY[3:]} given",
        f"environ({{'HF_TOKEN': '{KEY[3:]}', 'PATH': '/bin'}})",
        f"  wandb_api_key ................. {KEY[3:]}",
        f"http_proxy=http://me:{KEY[3:]}@proxy:80",
        f"Authorization: Bearer {KEY[3:]}",
        f"--api-key={KEY[3:]}",
        f"password: {KEY[3:]}, user: me",
    ],
)
def test_a_secret_in_a_text_is_left_out(text: str) -> None:
    assert KEY[3:] not in masked(text, {})
    assert LEFT_OUT in masked(text, {})


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN is not set",
        "KeyError: 'HF_TOKEN'",
        "loss per token: 6.2",
        "HF_TOKEN_PATH=/x/y secret_file: /a/b",
        "  moe_token_dispatcher_type ....................... alltoall",
        "  api_key ......................................... None",
        "hf_config is wrong, see sk-learn",
        "  tokenizer_key ................................... text",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert masked(text, {}) == text


def test_secrets_of_the_environment_are_left_out_wherever_they_stand() -> None:
    held = {
        "MY_TOKEN": "correct-horse",
        "MY_TOKEN_FILE": "/home/me/file",
        "AUTH": "none",
        "LONG_TOKEN": "correct-horses",
    }
    said = masked("correct-horse, /home/me/file, none, correct-horses", held)
    assert said == f"{LEFT_OUT}, /home/me/file, none, {LEFT_OUT}"


def with_trainer(**trainer: object) -> Recipe:
    data = load_recipe(packaged_examples()[-1]).model_dump(mode="json")
    data["burst"] |= {"engine": "command"}
    return recipe_from(Source(name="r.yaml", data=data | {"trainer": {"command": ["python", "t.py"], **trainer}}))


def test_a_recipe_with_a_secret_is_refused_with_how_to_name_it() -> None:
    with pytest.raises(BadInputError) as refused:
        with_trainer(env={"HF_TOKEN": "sekrit", "NCCL_DEBUG": "INFO"}, command=["t.py", "--wandb-api-key", "sekrit"])
    assert "sekrit" not in str(refused.value)
    assert [problem.where for problem in refused.value.problems] == [
        "r.yaml trainer.env.HF_TOKEN",
        "r.yaml trainer.command",
    ]
    assert "HF_TOKEN: ${HF_TOKEN}" in refused.value.problems[0].hint
    assert with_trainer(env={"HF_TOKEN": "${HF_TOKEN}"}).trainer is not None


def test_flags_that_only_look_like_a_secrets_are_taken() -> None:
    words = ("t.py", "--eod-token", "3", "--tokenizer-key", "k", "dataset.sort_key=text", "--hf-token-file", "x")
    assert list(secrets_in(words)) == []
    assert list(secrets_in(("t.py", "++logger.wandb_api_key=x", "--hub-token=y", "http://me:pw@host/"))) == [
        *("++logger.wandb_api_key", "--hub-token", "a word"),
    ]


def test_the_folder_that_holds_the_ranks_environment_is_the_users_alone(tmp_path: Path) -> None:
    assert new_control(tmp_path / "engine").stat().st_mode & 0o077 == 0
