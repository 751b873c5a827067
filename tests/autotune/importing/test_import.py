"""`moe-autotune import`: users' files become a recipe, and nothing of them is lost or changed silently."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.export import export
from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from autotune.importing.recipe import Imported
from autotune.importing.scripts import started
from tests.autotune.importing.starts import LAUNCH, STARTS, asked_of
from tests.places import TRACES
from trainer.errors import BadInputError
from trainer.frameworks.megatron_lm.agreement import differences
from trainer.frameworks.megatron_lm.command import with_recipe
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.rules import FindingKind, check

SHARED = TRACES.parent / "facts"
LOGS = SHARED / "trainer_logs"


@cache
def made_of(name: str) -> Imported:
    return imported(asked_of(name))


@pytest.mark.parametrize("name", STARTS)
def test_the_recipe_and_what_stays_mean_what_the_file_meant(name: str) -> None:
    made = made_of(name)
    assert made.changed == {}
    assert made.recipe.burst.engine == "command"
    text = made.recipe.to_yaml()
    assert Recipe.model_validate(made.recipe.model_dump()).to_yaml() == text


@pytest.mark.parametrize("name", STARTS)
def test_an_imported_recipe_can_be_loaded_and_checked(name: str, tmp_path: Path) -> None:
    asked = asked_of(name)
    words = ["import", asked.file, "-o", str(tmp_path / "r.yaml")]
    words += ["--gpu", asked.gpu] if asked.gpu else []
    words += ["--nodes", str(asked.nodes)] if asked.nodes else []
    words += [word for key, value in asked.given.items() for word in ("--set", f"{key}={value}")]
    assert main(words) == 0
    recipe = load_recipe(str(tmp_path / "r.yaml"))
    assert recipe.digest() == made_of(name).recipe.digest()
    assert all(finding.kind in FindingKind for finding in check(recipe))


def test_a_torchrun_script_becomes_what_one_rank_runs_and_a_cluster() -> None:
    made = imported(asked_of("mixture_torchrun.sh"))
    recipe, trainer = made.recipe, made.recipe.trainer
    assert trainer is not None
    assert trainer.command[:2] == ("python", "pretrain_gpt.py")
    assert (recipe.cluster.nodes, recipe.cluster.gpus_per_node) == (4, 8)
    assert recipe.parallelism.virtual_pipeline_model_parallel_size == 2
    assert recipe.knob("overlap_p2p_comm") is True
    assert recipe.knob("CUDA_DEVICE_MAX_CONNECTIONS") == 1
    assert trainer.env == {"NCCL_DEBUG": "WARN"}
    assert "do-not-copy-me" not in made.recipe.to_yaml()
    assert "/ckpt/tensorboard $(date +%F)" in trainer.command


def test_a_slurm_script_names_the_gpu_and_its_words_are_kept_as_a_comment(tmp_path: Path) -> None:
    target = tmp_path / "r.yaml"
    assert main(["import", str(LAUNCH / "latent_slurm.sh"), "-o", str(target)]) == 0
    text = target.read_text()
    assert "#SBATCH --job-name=latent --nodes=32" in text
    assert "--container-image=nvcr.io/nvidia/pytorch:25.06-py3" in text
    recipe = load_recipe(str(target))
    assert (recipe.cluster.gpu, recipe.world_size, recipe.training.precision) == ("h100", 256, "fp8_blockwise")
    assert recipe.architecture.moe_layers.count(True) == 58


def test_everything_that_only_running_could_tell_is_asked_for_at_once_with_its_line() -> None:
    with pytest.raises(BadInputError) as refused:
        imported(ImportOptions(file=str(LAUNCH / "mixture_torchrun.sh"), gpu="h100"))
    hints = {problem.hint for problem in refused.value.problems}
    assert hints == {"--set 1=VALUE", "--set 2=VALUE", "--set 3=VALUE", "--vocab-size N"}
    assert sum(bool(re.search(r"mixture_torchrun\.sh:\d+$", each.where)) for each in refused.value.problems) == 3


SMALL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 8 --micro-batch-size 1 --vocab-size 9 --bf16"
)


def test_values_of_a_yaml_file_of_arguments_stay_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    own = {"--fork-time": "12:30", "--fork-on": "on", "--fork-oct": "010", "--fork-under": "1_000", "--lr": "1.0e-5"}
    words = SMALL.split()
    flags = {**dict(zip(words[:-1:2], words[1::2], strict=True)), **own, "--bf16": "true", "--fork-not": "false"}
    lines = "".join(f"  {flag}: {value}\n" for flag, value in flags.items())
    file.write_text(f"ENV_VARS:\n  FOO: on\n  BAR: 0x10\nMODEL_ARGS:\n{lines}")
    trainer = imported(ImportOptions(file=str(file), gpu="h100", nodes=1)).recipe.trainer
    assert trainer is not None
    assert trainer.env == {"FOO": "on", "BAR": "0x10"}
    assert all(list(trainer.command)[trainer.command.index(flag) + 1] == value for flag, value in own.items())
    assert "--fork-not" not in trainer.command


@pytest.mark.parametrize(
    "form", ["{words}\n", "--bf16: true\n--data-path: $DATA_PATH/tok ${{OTHER}} {{MORE}}\n--fork: ${{X:-3}}\n"]
)
def test_variables_in_a_file_of_arguments_are_asked_for(form: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(form.format(words=f"{SMALL} --data-path $DATA_PATH/tok ${{OTHER}} {{MORE}} --fork ${{X:-3}}"))
    with pytest.raises(BadInputError) as refused:
        imported(ImportOptions(file=str(file), gpu="h100", nodes=1))
    assert {each.hint for each in refused.value.problems} == {
        f"--set {n}=VALUE" for n in ("DATA_PATH", "OTHER", "MORE")
    }


def test_a_variable_of_a_file_that_the_script_reads_is_empty_where_it_is_not_set(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export A=1\nDATA=$DATA_ROOT/tok\n")
    file = tmp_path / "go.sh"
    file.write_text(f"source env.sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} --data-path $DATA\n")
    notes = imported(ImportOptions(file=str(file), gpu="h100")).found.notes
    assert notes == ("not set, taken as empty as bash does: DATA_ROOT (line 2): --set NAME=VALUE",)
    trainer = imported(ImportOptions(file=str(file), gpu="h100", given={"DATA_ROOT": "/d"})).recipe.trainer
    assert trainer is not None
    assert trainer.command[-1] == "/d/tok"


def test_a_second_training_command_is_said(tmp_path: Path) -> None:
    file = tmp_path / "two.sh"
    line = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 8"
    file.write_text(f"{line} --seed 1\npython tools/count.py --a 1\n{line} --seed 2 --load /first\n")
    found = started(file.read_text(), ImportOptions(file=str(file)))
    assert found.argv[-1] == "/first"
    (note,) = found.notes
    assert note.startswith("line 1: pretrain_gpt.py is started too: line 3 is what was imported")


def test_what_a_script_does_not_say_is_asked_for() -> None:
    asked = asked_of("mixture_torchrun.sh")
    without_gpu = ImportOptions(file=asked.file, given=asked.given)
    with pytest.raises(BadInputError, match="--gpu, one of"):
        imported(without_gpu)
    given = {name: value for name, value in asked.given.items() if name != "vocab_size"}
    with pytest.raises(BadInputError, match="--vocab-size N"):
        imported(ImportOptions(file=asked.file, gpu="h100", given=given))
    with pytest.raises(BadInputError, match="--nodes N"):
        imported(ImportOptions(file=str(LAUNCH / "zoo.yaml"), gpu="h100", given={"EP": "8"}))
    with pytest.raises(BadInputError, match="nothing in the file has that name"):
        imported(ImportOptions(file=asked.file, gpu="h100", given={"NOT_IN_IT": "1", **asked.given}))


def test_importing_runs_nothing_and_writes_nothing_but_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (LAUNCH / "traps.sh").read_text().replace("/tmp/moe_autotune_must_not_exist", str(tmp_path / "mark"))
    (tmp_path / "traps.sh").write_text(f"touch made; echo x > made; $(touch made)\n{text}\ntouch {tmp_path}/made\n")
    assert main(["import", "traps.sh", "--gpu", "h100", "-o", "r.yaml"]) == 0
    assert sorted(os.listdir(tmp_path)) == ["r.yaml", "traps.sh"]


def test_quotes_arrays_and_negative_numbers_arrive_as_bash_gives_them() -> None:
    trainer = imported(asked_of("traps.sh")).recipe.trainer
    assert trainer is not None
    assert trainer.command[:4] == ("python3", "-u", "-m", "team.train")
    kept = trainer.command[trainer.command.index("--name") :]
    assert kept[:7] == ("--name", "single $quoted", "two words", "", "--x=-1.5", "tab\there", "--layers")
    assert kept[kept.index("--note") + 1] == 'it\'s "fine"'
    assert "--sum=5" in kept


@pytest.mark.skipif(not LOGS.is_dir(), reason="without ../shared")
def test_a_log_is_a_recipe_without_a_command() -> None:
    made = imported(ImportOptions(file=str(LOGS / "mlm_2026_08_ep2_trace.log"), gpu="h100"))
    recipe = made.recipe
    assert (recipe.trainer, recipe.burst.engine, recipe.world_size) == (None, "megatron", 2)
    assert recipe.architecture.vocab_size == 512
    assert recipe.parallelism.expert_model_parallel_size == 2
    assert any("a log has no command" in note for note in made.found.notes)


@pytest.mark.skipif(not LOGS.is_dir(), reason="without ../shared")
def test_a_log_above_the_peak_of_the_gpu_is_said_to_be_wrong(tmp_path: Path) -> None:
    text = (LOGS / "mlm_2026_08_ep2_trace.log").read_text()
    file = tmp_path / "fast.log"
    file.write_text(text.replace("(TFLOP/s/GPU): 0.0", "(TFLOP/s/GPU): 1937.0"))
    assert file.read_text() != text
    made = imported(ImportOptions(file=str(file), gpu="h200"))
    assert any("the trainer reports 1,937 TFLOP/s per GPU" in note for note in made.found.notes)


def test_words_that_a_recipe_would_not_say_again_stay_in_the_command() -> None:
    made = imported(asked_of("latent_slurm.sh"))
    assert made.recipe.trainer is not None
    rest = list(made.recipe.trainer.command[3:])
    asked = asked_of("latent_slurm.sh")
    argv = started(Path(asked.file).read_text(), asked).argv
    assert differences(argv, with_recipe(rest, made.recipe), world_size=made.recipe.world_size) == {}


def test_what_the_recipes_words_would_alter_is_said_aloud(tmp_path: Path) -> None:
    least = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1"
    file, target = tmp_path / "x.sh", tmp_path / "r.yaml"
    low = "--bf16 --fp8-format hybrid --fp8-recipe mxfp8"
    file.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {least} --vocab-size 512 {low}\n")
    made = imported(ImportOptions(file=str(file), gpu="b200"))
    assert dict(made.changed) == {"fp8": ("hybrid", "e4m3")}
    assert made.recipe.cluster.nodes == 1
    assert main(["import", str(file), "--gpu", "b200", "-o", str(target)]) == 0
    assert "# CHANGED: fp8 is e4m3 by the recipe's flags, hybrid in the file" in target.read_text()


def test_json_says_what_was_taken_passed_on_and_left_out(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "r.yaml"
    assert main(["import", str(LAUNCH / "latent_slurm.sh"), "-o", str(target), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["yaml"] == target.read_text()
    assert document["took"]["knobs"]["moe_token_dispatcher_type"] == "flex"
    assert "--data-path" in document["passed_on"]["arguments"]
    assert document["passed_on"]["environment"] == {"NCCL_IB_TIMEOUT": "19", "NCCL_SOCKET_IFNAME": "eth0"}
    assert document["changed"] == []


def test_a_file_that_exists_is_replaced_with_force_only(tmp_path: Path) -> None:
    target = tmp_path / "r.yaml"
    target.write_text("mine")
    words = ["import", str(LAUNCH / "latent_slurm.sh"), "-o", str(target)]
    assert main(words) == 2
    assert target.read_text() == "mine"
    assert main([*words, "--force"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello\n", "no training command was reached: it ended in line 1 (echo hello)"),
        ("python train.py --epochs 3 --model resnet\n", "takes no arguments that Megatron-LM or Megatron-Bridge know"),
        ("a: 1\nb: 2\n", "a mapping of an unknown kind"),
        ('{"model_type": "resnet"}', "model_type 'resnet' is not known"),
        ("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 4\n", "--num-attention-heads, --seq-length"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_reason(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "x.sh"
    file.write_text(text)
    with pytest.raises(BadInputError, match=re.escape(said)):
        imported(ImportOptions(file=str(file), gpu="h100", nodes=1))


def test_a_slurm_script_of_several_nodes_is_started_by_slurm() -> None:
    of_slurm = imported(asked_of("latent_slurm.sh")).recipe
    assert of_slurm.cluster.nodes > 1
    assert of_slurm.burst.launcher_kind == "slurm"
    assert imported(asked_of("mixture_torchrun.sh")).recipe.burst.launcher_kind == "local"


PREPARED = """#!/bin/bash
#SBATCH -N 2 --gpus-per-node=h100:8
module load cuda
source ~/venv/bin/activate
conda activate moe
srun -lN 2 python pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \\
  --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16
conda deactivate
"""


def test_what_prepares_the_shell_is_said_carried_and_found_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, target = tmp_path / "s.sh", tmp_path / "r.yaml"
    script.write_text(PREPARED)
    venv = os.path.expanduser("~/venv/bin/activate")
    assert main(["import", str(script), "-o", str(target)]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "3 lines of shell setup: module load cuda; source " in said
    recipe = load_recipe(str(target))
    assert recipe.trainer is not None
    assert recipe.cluster.nodes == 2
    assert recipe.trainer.setup == ("module load cuda", f"source {venv}", "conda activate moe")
    for to in ("slurm", "megatron-lm"):
        script.write_text(export(recipe, to))
        again = imported(ImportOptions(file=str(script), gpu="h100", name=recipe.name)).recipe
        assert again.trainer is not None
        assert again.trainer.setup == recipe.trainer.setup


def test_options_that_the_script_takes_are_asked_for_by_what_it_is_started_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, target = tmp_path / "s.sh", tmp_path / "r.yaml"
    loop = "while [[ $# -gt 0 ]]; do case $1 in --hidden) H=$2; shift 2 ;; *) shift ;; esac; done\n"
    text = PREPARED.replace("srun", loop + "srun").replace("--hidden-size 512", "--hidden-size $H")
    script.write_text(text)
    assert main(["import", str(script), "-o", str(target)]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "not set, taken as empty as bash does: H (line 7)" in said
    assert "the script's arguments ($@) are not known: taken as empty (--set '@=…')" in said
    assert main(["import", str(script), "-o", str(target), "--set", "@=--hidden 512"]) == 0
    assert load_recipe(str(target)).architecture.hidden_size == 512


def test_a_script_that_starts_over_ssh_asks_for_the_nodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, target = tmp_path / "s.sh", tmp_path / "r.yaml"
    words = PREPARED.partition("srun -lN 2 python ")[2].partition("\nconda")[0]
    torchrun = "torchrun --nproc_per_node 8 --nnodes $N --node_rank $i"
    (tmp_path / "hosts").write_text("h1\nh2\n")
    script.write_text(f'for host in $(cat hosts); do\n ssh $host "{torchrun} {words}" &\ndone\n')
    assert main(["import", str(script), "-o", str(target), "--gpu", "h100"]) == 2
    assert "--nodes" in capfd.readouterr().err
    assert main(["import", str(script), "-o", str(target), "--gpu", "h100", "--nodes", "4"]) == 0
    assert "ssh starts it on other machines" in " ".join(capfd.readouterr().out.split())
    assert load_recipe(str(target)).cluster.nodes == 4
