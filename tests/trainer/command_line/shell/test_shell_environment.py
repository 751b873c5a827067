"""What a command of a script finds: exported variables, and what prepared its shell."""

from __future__ import annotations

import pytest

from trainer.command_line.shell import read_script


def test_exported_variables_and_those_before_a_command_are_its_environment() -> None:
    script = read_script("export A=1\nB=2\nexport B\nC=3\nD=4 A=9 run\nset -a\nE=5\nrun\n")
    first, second = script.commands
    assert {name: word.text for name, word in first.env.items()} == {"A": "9", "B": "2", "D": "4"}
    assert {name: word.text for name, word in second.env.items()} == {"A": "1", "B": "2", "E": "5"}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("export P=/here:$P", "/here:${P}"),
        ("export P=$P:/here", "${P}:/here"),
        ('export P="/here:${P:-}"', "/here:${P}"),
        ("export P=/here${P:+:$P}", "/here:${P}"),
        ("export P; P+=:/here", "${P}:/here"),
        ("export P=/a:$P; P=/b:$P", "/b:/a:${P}"),
        ("export P=${P:-}", ""),
        ("export P=${P:-/here}", "/here"),
    ],
)
def test_what_a_variable_held_before_the_script_stays_in_the_environment_by_its_name(line: str, kept: str) -> None:
    (command,) = [each for each in read_script(f"{line}\ngo $P\n").commands if each.words[0].text == "go"]
    assert (command.env["P"].text, command.env["P"].gaps) == (kept, ())
    assert not any("{" in word.text for word in command.words)
    prefixed = read_script("P=/here:$P go\nexport P=/a:$P Q=$P:/b\ngo\n").commands
    assert prefixed[0].env["P"].text == "/here:${P}"
    assert [gap.name for gap in prefixed[1].env["Q"].gaps] == ["P"]


def test_what_stands_before_a_function_or_exec_is_its_environment() -> None:
    text = "train() { go; }\nA=1 train\nB=2 exec go\nC=3 eval go\ngo\n"
    found = [{name: word.text for name, word in each.env.items()} for each in read_script(text).commands]
    assert found == [{"A": "1"}, {"B": "2"}, {"C": "3"}, {}]


@pytest.mark.parametrize(
    "line", ["set -a; A=1; set +a", "set -o allexport; A=1; set +o allexport", "declare -x A=1", "declare -rx A=1"]
)
def test_export_of_everything_is_switched_off_again(line: str) -> None:
    both = read_script(f"{line}\nB=2\ngo\nexport -n A\ngo\n").commands
    assert [sorted(each.env) for each in both] == [["A"], []]


def test_what_prepares_the_shell_is_kept_in_its_order_as_written() -> None:
    text = """
ENV=megatron; CONDA=/opt/conda
module purge && module load cuda/12.8 nccl
eval "$($CONDA/bin/conda shell.bash hook)"
conda activate $ENV
source ~/venv/bin/activate 2> /dev/null
. /etc/profile.d/lmod.sh
if [ -f /here ]; then module load hidden; fi
srun bash -c 'source /inside/activate; torchrun t.py'
conda deactivate
"""
    script = read_script(text)
    (command,) = script.commands
    assert command.setup == (
        "module purge",
        "module load cuda/12.8 nccl",
        'eval "$(/opt/conda/bin/conda shell.bash hook)"',
        "conda activate megatron",
        "source ~/venv/bin/activate",
        ". /etc/profile.d/lmod.sh",
        "source /inside/activate",
    )
    assert any("module load hidden depends on a test" in note for note in script.notes_in_order())


def test_a_shell_of_its_own_prepares_itself_alone() -> None:
    text = """
module load a
(cd tools && module load b)
bash -c 'module load c; first'
docker run img bash -c 'cd /inside; second'
third
"""
    commands = {command.words[-1].text: command for command in read_script(text).commands}
    assert commands["first"].setup == ("module load a", "module load c")
    assert (commands["second"].setup, commands["second"].outside) == (("cd /inside",), ("module load a",))
    assert (commands["third"].setup, commands["third"].outside) == (("module load a",), ())


def test_lines_before_a_command_of_the_same_undecided_branch_are_its_own() -> None:
    text = "if some_test; then\n  module load a || true\n  go\nfi\nlast\n"
    first, last = read_script(text).commands[-2:]
    assert (first.setup, last.setup) == (("module load a || true",), ())
