"""Launch scripts as bash would read them, without a line of them being run: what they start, source and submit."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.command_line.shell import read_script


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("if ! torchrun $X; then exit 1; fi", True),
        ("until torchrun $X; do sleep 1; done", True),
        ("for X in 1 2; do torchrun $X; done", False),
        ("while some_test; do torchrun $X; done", False),
    ],
)
def test_what_a_test_or_a_loop_starts_is_read(text: str, sure: bool) -> None:
    (command,) = [each for each in read_script(text + "\n").commands if each.words[0].text == "torchrun"]
    assert (command.sure, [gap.name for gap in command.words[1].gaps]) == (sure, ["X"])


def test_a_script_beside_is_read_and_another_is_said() -> None:
    beside = {"env.sh": "SIZE=7\n"}.get
    script = read_script('source "$(dirname "$0")/env.sh"\n. /etc/profile\ngo $SIZE\n', beside=beside)
    assert [word.text for word in script.commands[-1].words] == ["go", "7"]
    assert script.notes_in_order() == ["line 2: source /etc/profile was not read: what it sets is not known"]


def test_here_documents_loops_and_what_follows_exit_start_nothing() -> None:
    text = "cat <<EOF > x\ngo wrong\nEOF\nfor i in 1 2; do N=$i; done\ngo right\nexit 0\ngo late\n"
    script = read_script(text)
    assert [[w.text for w in c.words] for c in script.commands if c.words[0].text == "go"] == [["go", "right"]]


def test_a_job_submitted_from_a_here_document_is_read() -> None:
    text = "CMD='go one'\nsbatch <<EOF\n#!/bin/bash\n#SBATCH -N 3\nsrun bash -c \"${CMD} \\$SLURM_JOB_ID\"\nEOF\n"
    script = read_script(text)
    assert script.headers == ("-N", "3")
    assert [word.text for word in script.commands[-1].words] == ["srun", "go", "one", "$SLURM_JOB_ID"]


def test_sbatch_lines_are_read_and_their_sizes_known_to_the_script() -> None:
    script = read_script(
        "#!/bin/bash\n#SBATCH -N 4 --gres=gpu:h100:8   # nodes\n#SBATCH --time=1\ngo $SLURM_NNODES\n#SBATCH -N 9\n"
    )
    assert script.headers == ("-N", "4", "--gres=gpu:h100:8", "--time=1")
    assert script.commands[-1].words[1].text == "4"


@pytest.mark.parametrize("options", ["-N 3 --gres gpu:4", "-N3 --gres=gpu:4", "--nodes=3 --gres=gpu:4"])
def test_what_sbatch_is_told_wins_over_the_job_it_submits(options: str) -> None:
    job = "#!/bin/bash\n#SBATCH -N 4\nsrun go $SLURM_NNODES $SLURM_GPUS_ON_NODE $1\n"
    script = read_script(f"sbatch {options} job.sh -x\n", beside={"job.sh": job}.get)
    assert [word.text for word in script.commands[-1].words] == ["srun", "go", "3", "4", "-x"]
    assert script.headers == ("-N", "4", *options.split())
    document = read_script(f"sbatch {options} <<'EOF'\n{job.replace(' $1', '')}EOF\n")
    assert [word.text for word in document.commands[-1].words] == ["srun", "go", "3", "4"]


def test_nothing_of_a_script_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = (
        f"touch {mark}; $(touch {mark}); `touch {mark}`\neval touch {mark}\nbash -c 'touch {mark}'\nrm -rf {tmp_path}\n"
    )
    read_script(text)
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_no_bash_is_said_with_its_line() -> None:
    script = read_script("A=1\nif then )) fi\ngo $A\n")
    assert any("not understood" in note for note in script.notes_in_order())


def test_what_is_started_over_ssh_is_read_as_the_other_machine_would() -> None:
    text = """
for host in $(cat hosts); do
  ssh -o StrictHostKeyChecking=no -p 22 $host "cd /work; NCCL_DEBUG=INFO torchrun --nproc_per_node 8 t.py --x 'a b'" &
done
pdsh -w node[1-4] torchrun t.py
"""
    script = read_script(text)
    assert [[word.text for word in command.words] for command in script.commands] == [
        ["torchrun", "--nproc_per_node", "8", "t.py", "--x", "a b"],
        ["torchrun", "t.py"],
    ]
    assert script.commands[0].env["NCCL_DEBUG"].text == "INFO"
    assert any("ssh starts it on other machines" in note for note in script.notes_in_order())
