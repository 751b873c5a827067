"""What only running a script could tell is asked for: how a function ended, loops without an end, numbers of printf."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainer.command_line.shell import read_script

ASKED = "asked"


def shown(text: str) -> str:
    """The last command's words, or that it has a gap."""
    last = read_script(text).commands[-1].words[1:]
    return ASKED if any(word.gaps for word in last) else " ".join(word.text for word in last)


UNDECIDED = [
    "nvidia-smi --query-gpu=name | grep -q H100",
    "grep -q x /proc/cpuinfo",
    "command -v nvcc",
    "test -f /here",
    "if grep -q x y; then Z=1; fi",
    "for x in 1 2; do grep -q $x y; done",
    "X=$(some_program)",
    "some_program && echo yes",
    "g() { some_program; }; g",
    "some_program; return",
    "some_program; return $?",
    "some_program; X=$?; return $X",
    "if some_program; then return 0; fi; return 1",
    "for x in $(some_program); do [ $x = a ] && return 0; done; return 1",
    "echo yes > /here/file",
]


@pytest.mark.parametrize("body", UNDECIDED)
def test_a_function_that_only_running_could_decide_is_asked_for(body: str) -> None:
    text = f"f() {{ {body}; }}\n%s\nshow $MBS $PREC\n"
    chosen = "MBS=4; PREC='--fp8-format hybrid'; else MBS=1; PREC=--bf16; fi"
    assert shown(text % f"if f; then {chosen}") == ASKED
    assert shown(text % f"if ! f; then {chosen}") == ASKED
    assert shown(text % "MBS=1; f && MBS=4") == ASKED
    assert shown(text % "MBS=1; f || MBS=4") == ASKED


def test_what_is_answered_about_a_function_decides_its_branch() -> None:
    text = "f() { some | grep -q H100; }\nif f; then A=4; else A=1; fi\nB=1\nf && B=4\nshow $A $B\n"
    command = read_script(text, given={"if@2": "yes", "if@4": "no"}).commands[-1]
    assert [word.text for word in command.words] == ["show", "4", "1"]


KNOWN = [
    "test $1 = a",
    "(( $# > 2 ))",
    "(( 3 > 2 ))",
    "false",
    "true",
    "X=1",
    "local X=1",
    "export X=$(false)",
    "echo $1 >&2",
    "! test $1 = b",
    'g() { [[ $1 == b ]]; }; g "$1"',
    "g() { false; return; }; g",
    "g() { true; return; }; ! g",
    "[ $1 = a ]; return",
    "[ $1 = b ] && return; false",
    "[ $1 = a ] || return; true",
    "if [ $1 = b ]; then return; fi; false",
    '[ -z "$X" ] && X=1',
    "for x in a b; do [ $x = $1 ] && return 0; done; return 1",
]


@pytest.mark.parametrize("body", KNOWN)
@pytest.mark.parametrize("argument", ["a", "b", "3"])
def test_a_status_that_is_known_is_that_of_bash(body: str, argument: str, tmp_path: Path) -> None:
    branches = f"if f {argument}; then A=yes; else A=no; fi\nunset X\nf {argument} && B=yes || B=no"
    text = f"f() {{ {body}; }}\n{branches}\nshow $A $B\n"
    command = ["bash", "-c", f'show() {{ echo "$*"; }}; {text}']
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert shown(text) == done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "loop",
    [
        "for ((N=0; N<600; N++)); do :; done",
        "for ((i=0; i<600; i++)); do N=$i; done",
        "for h in {1..600}; do N=$h; done",
        "for N in {1..600}; do :; done",
        "while true; do N=$((N+1)); done",
        "until false; do N=$((N+1)); done",
    ],
)
def test_a_loop_of_too_many_turns_is_not_taken_for_one_that_ended(loop: str) -> None:
    script = read_script(f"N=1\n{loop}\nshow $N\n")
    assert any("a loop was not followed" in note for note in script.notes_in_order())
    assert [gap.name for gap in script.commands[-1].words[-1].gaps] == ["N"]


def test_a_loop_of_as_many_turns_as_are_read_is_followed() -> None:
    assert shown("for ((i=0; i<500; i++)); do N=$i; done; show $N $i") == "499 500"


@pytest.mark.parametrize("number", ["010", "-010", "0x10", "1_000", "08"])
def test_what_printf_makes_of_a_number_in_another_base_is_not_known(number: str) -> None:
    assert shown(f"show $(printf '%02d' {number})") == ASKED
    assert shown(f"printf -v N '%d' {number}; show $N") == ASKED


def test_plain_numbers_are_printed_with_their_zeros() -> None:
    assert shown("show $(printf '%02d-' 0 7 -3 12)") == "00-07--3-12-"


NESTED = [
    "for a in 1 2 3; do for b in x y z; do N=$N$a$b; [ $b = y ] && break 2; done; N=$N-; done; show $N $a $b",
    "for a in 1 2 3; do for b in x y z; do N=$N$a$b; [ $b = y ] && continue 2; done; N=$N-; done; show $N $a $b",
    "for a in 1 2 3; do for b in x y z; do N=$N$a$b; [ $b = y ] && break 9; done; N=$N-; done; show $N $a $b",
    "for a in 1 2; do for b in x y z; do [ $b = y ] && break; N=$N$a$b; done; N=$N-; done; show $N $a $b",
    "X=1; f() ( X=3; Y=4; [ $X = 3 ] ); f && Z=5; show $X $Z end",
    "V=12.8.1; [[ $V =~ ^[0-9]+(\\.[0-9]+)*$ ]] && A=1 || A=2; show $A",
]


@pytest.mark.parametrize("text", NESTED)
def test_loops_in_loops_and_functions_of_their_own_shell_end_as_in_bash(text: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'show() {{ echo "$*"; }}; {text}'], capture_output=True, text=True, check=True
    )
    assert shown(text) == done.stdout.strip()


@pytest.mark.parametrize(
    "text",
    [
        "for a in 1 2; do if some; then break; fi; N=$a; done; show $N",
        "for a in 1 2; do for b in $(some); do M=$b; break 2; done; N=$a; done; show $N",
        "K=$(some); for a in 1 2; do for b in 1 2; do break $K; done; N=$a; done; show $N",
        "for a in 1 2; do for b in 1 2; do if some; then continue 2; fi; done; N=$a; done; show $N",
    ],
)
def test_what_a_loop_sets_that_may_have_ended_before_is_asked_for(text: str) -> None:
    assert shown(text) == ASKED
    assert shown(f"{text}; for c in 1 2; do P=$c; done; show $P") == "2"


def test_a_search_that_would_not_end_is_not_tried() -> None:
    text = f"A={'a' * 40}b; if [[ $A =~ ^(a+)+$ ]]; then N=1; else N=2; fi; show $N"
    assert shown(text) == ASKED


@pytest.mark.parametrize(
    "asking", ["nvidia-smi | grep -q H100", "grep -q x /proc/cpuinfo", "command -v nvcc > /dev/null 2>&1", "which nvcc"]
)
def test_what_is_run_for_its_status_decides_no_list(asking: str) -> None:
    assert shown(f"A=1\n{asking} && A=4\nshow $A\n") == ASKED
    assert shown(f"A=1\n{asking} || A=4\nshow $A\n") == ASKED
    assert shown("A=1\nmkdir -p logs && A=4\nshow $A\n") == "4"
