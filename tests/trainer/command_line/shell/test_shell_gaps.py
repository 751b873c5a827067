"""What only running a script could tell: gaps by name and line, asked for, and filled by --set."""

from __future__ import annotations

import pytest

from trainer.command_line.shell import read_script


def test_what_only_running_could_tell_is_a_gap_with_its_line() -> None:
    script = read_script('DATE=$(date +%F)\nOUT="run-$DATE"\ngo $1 "$OUT" $HERE\n')
    gaps = {gap.name: gap.line for word in script.commands[-1].words for gap in word.gaps}
    assert gaps == {"1": 3, "DATE": 1, "HERE": 3}
    filled = read_script(
        'DATE=$(date +%F)\nOUT="run-$DATE"\ngo $1 "$OUT" $HERE\n', given={"1": "a", "DATE": "d", "HERE": "h"}
    )
    assert [word.text for word in filled.commands[-1].words] == ["go", "a", "run-d", "h"]


def test_an_undecided_branch_leaves_what_it_sets_open_until_it_is_decided() -> None:
    text = "A=(--always)\nif [ -f /some/file ]; then\n  A+=(--then)\nfi\ngo ${A[@]}\n"
    assert [gap.name for word in read_script(text).commands[-1].words for gap in word.gaps] == ["if@2"]
    for answer, expected in (("yes", ["--always", "--then"]), ("no", ["--always"])):
        script = read_script(text, given={"if@2": answer})
        assert [word.text for word in script.commands[-1].words[1:]] == expected


def test_the_arguments_of_a_script_are_asked_for_by_the_number_they_were_given_under() -> None:
    text = "A=${1:-8b}; shift || true\nf() { go $1 $A; }\nf $1\n"
    (gap,) = read_script(text).commands[-1].words[1].gaps
    assert (gap.name, gap.line) == ("2", 3)
    assert [w.text for w in read_script(text, given={"1": "a", "2": "b"}).commands[-1].words] == ["go", "b", "a"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("((A=U^3))", ["A"]),
        ("B=$(nproc); ((A=B*2))", ["A"]),
        ("((A = B > 1 ? A++ : 3))", ["A"]),
        ("read -r -p ask A B", ["A", "B"]),
        ("read A B < file", ["A", "B"]),
        ("while read -r A; do torchrun t.py; done < file", ["A"]),
        ("printf -v A %q x", ["A"]),
        ("printf -v A %0999999999d 1", ["A"]),
        ("A=$(seq 999999999)", ["A"]),
        ("mapfile -t A < file", ["A"]),
        ("getopts ab: A", ["A"]),
        ("if some_test; then let A=3; fi", ["A"]),
    ],
)
def test_what_a_variable_is_filled_with_by_a_command_is_asked_for(line: str, names: list[str]) -> None:
    words = read_script(f"A=old; B=old\n{line}\ngo $A {'$B' if 'B' in names else ''}\n").commands[-1].words[1:]
    assert [gap.name for word in words for gap in word.gaps] == names
    assert {gap.line for word in words for gap in word.gaps} == {2}


def test_a_part_of_what_is_not_known_is_a_gap_of_its_own() -> None:
    text = "go $P ${P##*/} ${P/a/b} ${P/#a/b}\n"
    (command,) = read_script(text).commands
    assert [gap.name for word in command.words for gap in word.gaps] == ["P", "${P##*/}", "${P/a/b}", "${P/#a/b}"]
    (filled,) = read_script(text, given={"P": "/x/a"}).commands
    assert [word.text for word in filled.words] == ["go", "/x/a", "a", "/x/b", "${P/#a/b}"]
    assert [gap.name for word in filled.words for gap in word.gaps] == ["${P/#a/b}"]


def test_what_a_key_of_an_array_holds_is_asked_for() -> None:
    (command,) = read_script("declare -A M=([a]=1 [b]=2)\ngo ${M[a]} ${M[$K]}\n").commands
    assert [word.text for word in command.words[:2]] == ["go", "1"]
    assert [(gap.name, gap.text) for word in command.words for gap in word.gaps] == [("K", "${M[$K]}")]


def test_arguments_of_the_script_that_nobody_knows_are_said() -> None:
    for word in ('"$@"', "$*", '"${@:2}"'):
        script = read_script(f"go {word} end\n")
        assert [each.text for each in script.commands[0].words] == ["go", "end"]
        assert script.notes_in_order() == ["line 1: the script's arguments ($@) are not known: taken as empty"]


def test_tests_of_two_files_on_one_line_are_decided_apart() -> None:
    beside = {"env.sh": "if [ -f /a ]; then B=1; else B=2; fi\n"}.get
    text = "if [ -f /b ]; then A=1; else A=2; fi\nsource env.sh\ngo $A $B\n"
    gaps = [gap for word in read_script(text, beside=beside).commands[-1].words for gap in word.gaps]
    assert [(gap.name, gap.file, gap.line) for gap in gaps] == [("A", None, 1), ("B", "env.sh", 1)]
    decided = read_script(text, beside=beside, given={"if@1": "yes", "if@env.sh:1": "no"})
    assert [word.text for word in decided.commands[-1].words] == ["go", "1", "2"]


def test_neither_side_of_an_undecided_list_is_taken_for_granted() -> None:
    text = "A=0\n[ -f /a ] && A=1 || A=2\ngo $A\n"
    assert [gap.name for gap in read_script(text).commands[-1].words[1].gaps] == ["A"]
    assert read_script(text, given={"if@2": "no"}).commands[-1].words[1].text == "2"


def test_commands_of_an_undecided_branch_are_not_sure() -> None:
    script = read_script("if test_something; then go one; else go two; fi\n")
    assert [(command.words[1].text, command.sure) for command in script.commands] == [("one", False), ("two", False)]


PARSES = """#!/bin/bash
TP=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2 ;;
    --data) DATA="$2"; shift 2 ;;
    *) echo "what is $1"; exit 1 ;;
  esac
done
torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --data-path "$DATA"
"""


def test_what_a_script_takes_from_its_own_options_is_asked_for_by_what_it_is_started_with() -> None:
    (command,) = read_script(PARSES).commands
    gaps = [gap for word in command.words for gap in word.gaps]
    assert [(gap.name, gap.text) for gap in gaps] == [("@", "$TP"), ("@", "$DATA")]
    assert gaps[0].why == "the script reads it from its own options (--tp --data)"
    (command,) = read_script(PARSES, given={"@": "--data '/my data' --tp 4"}).commands
    assert [word.text for word in command.words[-4:]] == [
        "--tensor-model-parallel-size",
        "4",
        "--data-path",
        "/my data",
    ]
    (command,) = read_script(PARSES, given={"TP": "2", "DATA": "/d"}).commands
    assert [word.text for word in command.words[-3:]] == ["2", "--data-path", "/d"]


def test_a_loop_that_starts_something_or_waits_is_not_followed() -> None:
    for loop in ("for lr in 1 2; do torchrun t.py $lr; N=2; done", "while ! test -e /x; do N=2; sleep 1; done"):
        script = read_script(f"N=1\n{loop}\ngo $N\n")
        assert "line 2: a loop was not followed" in script.notes_in_order()
        assert [gap.name for gap in script.commands[-1].words[-1].gaps] == ["N"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("( [ -f /x ] || exit 1; echo ) && A=1", ["A"]),
        ("(exit $STATUS) || A=1", ["A"]),
        ("declare -i A=$(nproc); A+=2", ["A"]),
        ("declare -i A=3; A+=$((1 + $(nproc)))", ["A"]),
        ("declare -i A=3; if test_it; then A+=1; fi; A+=1", ["A"]),
        ("if A=$(some_program) && [ -n $A ]; then B=1; fi", ["A", "B"]),
        ("f() { A=9; }; while f && [ -f /x ]; do B=1; done", ["A", "B"]),
        ("case $(some_program) in a) A=1 ;& b) B=1 ;; esac", ["A", "B"]),
        ("while ((A-- > 0)); do :; done", ["A"]),
        ("until ((--A <= 0)); do :; done", ["A"]),
        ("while [ $((A--)) -gt 0 ]; do :; done", ["A"]),
        ("for x in $(some_program); do C=$((A++)); done", ["A"]),
        ("if ((A-- > 2)); then B=1; fi", ["A", "B"]),
        ("f() { B=7; }; for x in $(some_program); do read A <<< $x; f; done", ["A", "B"]),
        ("((A-- > 0)) && B=1", ["A", "B"]),
        ("let 'A > 9' && B=1", ["B"]),
        ("B=$((--A))", ["A", "A"]),
        ("declare -i B='A=5'", ["A", "B"]),
        ("declare -i A; read A <<< 010", ["A"]),
        ("declare -i A; for A in 2#1; do :; done", ["A"]),
        ("A=$([ a = b ] && echo 5) || A=7", ["A"]),
        ("B=$(echo 5; [ -f /x ] || exit 1) || A=7", ["A"]),
    ],
)
def test_how_a_shell_of_its_own_a_sum_or_a_test_comes_out_is_asked_for(text: str, names: list[str]) -> None:
    words = read_script(f"A=0; B=0\n{text}\ngo $A $B\n").commands[-1].words[1:]
    assert [gap.name for word in words for gap in word.gaps] == names


def test_a_count_that_decides_nothing_needs_no_note() -> None:
    assert read_script("N=1\n((N--)) || true\ngo $N\n").notes_in_order() == []


def test_an_exit_ends_its_own_shell_and_no_other() -> None:
    script = read_script("(module load b; go one; exit 1; go never)\n(cd /x; exit)\ngo two\nexit\ngo never\n")
    gone = [(each.words[1].text, each.setup) for each in script.commands]
    assert gone == [("one", ("module load b",)), ("two", ())]
