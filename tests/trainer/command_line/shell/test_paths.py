"""How a script finds its own folder, read and not run."""

from __future__ import annotations

import pytest

from trainer.command_line.shell import read_script


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ('python "$(dirname "$0")/train.py"', "/jobs/mine/train.py"),
        ('HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\npython $HERE/train.py', "/jobs/mine/train.py"),
        ('D=$( cd -- "$( dirname -- "$0" )" &> /dev/null && pwd )\npython $D/../train.py', "/jobs/mine/../train.py"),
        ("R=$(realpath $(dirname $0)/..)\npython $R/train.py", "/jobs/train.py"),
        ("python train.py --name $(basename $0)", "train.py"),
    ],
)
def test_a_script_finds_its_own_folder(text: str, program: str) -> None:
    command = read_script(text, path="/jobs/mine/run.sh").commands[-1]
    assert command.words[1].text == program
    assert not [gap for word in command.words for gap in word.gaps]


def test_any_other_substitution_is_asked_for() -> None:
    command = read_script("python $(ls | head -1)/train.py $(dirname $UNKNOWN)", path="/jobs/run.sh").commands[-1]
    assert all(word.gaps for word in command.words[1:])
