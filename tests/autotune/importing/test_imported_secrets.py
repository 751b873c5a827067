"""Passwords, keys and tokens of an imported file are named and never written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from autotune.cli import main
from trainer.recipe import load_recipe
from trainer.secrets import LEFT_OUT, is_secret, is_secret_flag, redacted

MODEL = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16"
)
SCRIPT = f"""#!/bin/bash
#SBATCH -N 2
#SBATCH --gpus-per-node=h100:8
#SBATCH --export=ALL,NGC_API_KEY=sekrit0,NCCL_IB_TC=106
export GITHUB_PAT=sekrit1 WANDB_KEY=sekrit2 wandb_api_key=sekrit3 HARMLESS=hf_sekrit4
export TOKEN_DISPATCHER=alltoall http_proxy=http://me:sekrit5@proxy:80
srun --export=ALL,WANDB_API_KEY=sekrit6,NCCL_DEBUG=INFO --ntasks-per-node=8 \\
    singularity exec --nv --env HF_TOKEN=sekrit7,NCCL_IB_HCA=mlx5_0,mlx5_1 img.sif \\
    python pretrain_gpt.py {MODEL} --wandb-api-key sekrit8 --api-key=sekrit9 --fork-token hf_sekrit \\
    --hub-token sekrit10 --eod-token 3 --tokenizer-key k
"""


def test_no_secret_reaches_the_recipe_its_header_or_the_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, target = tmp_path / "s.sh", tmp_path / "r.yaml"
    script.write_text(SCRIPT)
    assert main(["import", str(script), "-o", str(target), "--json"]) == 0
    said, text = capfd.readouterr(), target.read_text()
    assert "sekrit" not in text + said.out + said.err
    assert f"WANDB_API_KEY={LEFT_OUT}" in text
    trainer = load_recipe(str(target)).trainer
    assert trainer is not None
    assert trainer.env == {
        "TOKEN_DISPATCHER": "alltoall",
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "NCCL_IB_TC": "106",
    }
    assert trainer.command[-4:] == ("--eod-token", "3", "--tokenizer-key", "k")
    notes = json.loads(said.out)["notes"]
    left = ["--wandb-api-key", "--api-key", "--fork-token", "--hub-token"]
    assert [note.split()[0] for note in notes if "left out: it is a secret" in note] == left


NOTED = f"""#!/bin/bash
#SBATCH -N 2 --gpus-per-node=h100:8 --comment=hf_sekrit{"a" * 20}
KEYS[hf_sekrit{"b" * 20}]=x
export AUTH_URL=https://me:sekritpw@host/$(date)
export FETCH="curl -H 'Authorization: Bearer sekritbearer99'"
module load s3://AKIAABCDEFGHIJKLMNOP:sekritmodule@bucket/x
source https://me:sekritsrc@host/env.sh
python pretrain_gpt.py {MODEL} --save "s3://AKIAABCDEFGHIJKLMNOP:sekritsave@bucket/$(date)" \\
  --tensorboard-dir "https://me:sekrittb@h/$(date)" --header "Authorization: Bearer sekritbearer98"
"""


def test_no_note_quotes_a_secret_of_a_word_that_it_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, target = tmp_path / "s.sh", tmp_path / "r.yaml"
    script.write_text(NOTED)
    assert main(["import", str(script), "-o", str(target), "--json"]) == 0
    said = capfd.readouterr()
    notes = " ".join(json.loads(said.out)["notes"])
    assert "--save was left out: it is a secret" in notes
    assert "module load s3://<left out>@bucket/x was left out" in notes
    assert "sekrit" not in said.out + said.err + target.read_text()
    assert load_recipe(str(target)).trainer is not None


def test_a_line_end_in_a_launchers_word_stays_in_the_comment(tmp_path: Path) -> None:
    script, target = tmp_path / "s.sh", tmp_path / "r.yaml"
    words = '-N 2 --comment "one\nmodel: injected\u2028\x1btwo" --ntasks-per-node=8 --gpus-per-node=h100:8'
    script.write_text(f"#!/bin/bash\nsrun {words} python pretrain_gpt.py {MODEL}\n")
    assert main(["import", str(script), "-o", str(target)]) == 0
    assert "one model: injected two" in target.read_text()
    assert isinstance(yaml.safe_load(target.read_text())["model"], dict)


def test_names_that_only_look_like_a_secrets_are_kept() -> None:
    for name in ("TOKEN_DISPATCHER", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "HF_TOKEN_PATH", "KEYS"):
        assert not is_secret(name), name
    for flag in ("--tokenizer-model", "--eod-token", "--moe-token-dispatcher-type", "--json-keys", "--hf-token-file"):
        assert not is_secret_flag(flag), flag


def test_secrets_in_a_launchers_words_are_left_out() -> None:
    words = ["docker", "run", "-e", "HF_TOKEN=x,y", "--env=API_KEY=y", "-e", "A=1", "--password", "z", "img"]
    hidden = LEFT_OUT
    assert redacted(words) == (
        *("docker", "run", "-e", f"HF_TOKEN={hidden}", f"--env=API_KEY={hidden}"),
        *("-e", "A=1", "--password", hidden, "img"),
    )
