"""Launch scripts as bash would read them, without a line of them being run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainer.command_line.shell import Script, read_script

# what a script's last command is given; each is also asked of bash itself
EXPANSIONS = [
    "A=1; B='two words'; show $A $B \"$B\" '$A' \"\\$A\" a\\ b",
    'A=(--x \'a b\' "" c); A+=(--y=2); show "${A[@]}" ${A[@]} ${#A[@]} "${A[1]}" "${A[*]}"',
    'show ${NONE:-default} "${NONE:-a b}" ${NONE:-a b} ${NONE-x} "${NONE+set}"; A=; show ${A:-empty} ${A-kept}x',
    "A=3; show $((A*2+1)) $(( ($A + 4) / 2 )) $((7 % 4)) $((-7 / 2))",
    "A=--flags; A+=' more words'; show $A \"$A\"",
    "show a=b --x=-1.5 -3 $'tab\\there' \"it's\" 'say \"hi\"' # comment\n",
    'if [ "$UNSET" = 1 ]; then A=1; elif [[ 2 -gt 1 && -z "$UNSET" ]]; then A=2; else A=3; fi; show $A',
    "case b in a) A=1 ;; b|c) A=2 ;; *) A=3 ;; esac; show $A",
    "f() { local x=$1; show $x \"$@\"; }; f one 'two three'",
    '[ -z "$X" ] && X=5; [ -n "$Y" ] || Y=6; show $X $Y',
    "CMD=\"show a 'b c' \"; eval $CMD; show x \\\n  y",
    'A="x y"; B=" --lead $A --trail "; show pre$B post',
    'A=(); show "${A[@]}" ${A[@]} "" end',
    'show "$((2 > 1))" "a  b" "${HOME_OF_NOBODY:=made}" $HOME_OF_NOBODY',
    '[ "$F" = 1 ] && A=2 || A=3; [ -z "$F" ] && B=2 || B=3; false && C=1 || C=2; show $A $B $C',
    '[ "$F" = 1 ] || [ -z "$F" ] && A=2 || A=3; true || B=1 && B=2; show $A $B',
    'f() { local n=$1; shift; show $n "$@"; shift 2; show $# "$@"; return; show never; }; f one \'a b\' c d',
    'set -- a \'b c\'; show $# "$@"; set -- "$@" d; shift; show "$1" $2; set --; show $#',
    'f() { if [ "$1" = x ]; then show x; return; fi; show y; }; f x; f z',
    "N=4; ((N=N*2)); let W=3 V=W+1; X=1; let X=9; ((X++)); ((N+=X, --W)); show $N $W $V $X",
    "N=3; (( N > 2 )) && A=1 || A=2; (( N == 4 )) && B=1 || B=2; show $A $B; (A=9); show $A; { A=8; }; show $A",
    'G=h100-sxm; [[ $G = h100* ]] && A=1 || A=2; [[ $G = "h100*" ]] && B=1 || B=2; show $A $B',
    "G='a[1]'; if [[ $G == \"a[1]\" ]]; then A=1; else A=2; fi; P='a*'; [[ $G == $P ]] && B=1 || B=2; show $A $B",
    "G=h100; [[ $G =~ ^h[0-9]+$ ]] && A=1 || A=2; [[ $G == h* && $G =~ 'h.' ]] && B=1 || B=2; show $A $B",
    "G='a*'; [ \"$G\" = 'a*' ] && A=1 || A=2; [ ab = 'a*' ] && B=1 || B=2; [[ ab != 'a*' ]] && C=1; show $A $B $C",
    'G=h100x; [[ $G = \'h\'"100"* ]] && A=1 || A=2; [[ $G == "h1"*x && -n $G ]] && B=1 || B=2; show $A $B',
    "P=/a/b/c.tar.gz; show ${P##*/} ${P#*/} ${P%%.*} ${P%.*} ${P/a/z} ${P//[ac]/_} ${P^^} ${P:1:3} ${P: -2} ${#P}",
    'P=\'One two\'; E=two; show "${P% *}" ${P,,} "${P/$E/3}" ${P/ /-} ${P//o} "${P#one}" ${P,} "${P/\'*\'/x}"',
    'N=1; show ${N:+--flag "a b" \'c  d\'} ${M:-"x y" z} end',
    "bash -c 'show \"$1\" end' zero 'one two'",
    'HERE="1 2"; declare -A M=([a]=1 ["b c"]="x y" [d]=$HERE); M[e]=5; M[a]+=0; M+=([f]=6); K=e; '
    'show ${M[a]} "${M["b c"]}" "${M[d]}" ${M[$K]} ${M[f]} ${#M[@]} "${M[none]:-else}"',
    'A=(x "y z"); show ${!A[@]} "${!A[@]}"; for i in "${!A[@]}"; do B+="$i:${A[$i]},"; done; show "$B"',
    'for x in a "b c" d; do [ $x = d ] && continue; N="$N<$x>"; done; for y in 1 2 3; do [ $y = 2 ] && break; done; '
    'show "$N" $y',
    'parse() { while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2 ;; --pp=*) PP="${1#*=}"; shift ;; '
    '-v|--verbose) V=1; shift ;; --) shift; break ;; *) R+=("$1"); shift ;; esac; done; '
    'show $TP $PP $V "${R[@]}" $#; }; '
    "parse --tp 4 x --pp=2 -v 'y z' -- last",
    'set -- --n 3 --flag; while (( $# )); do if [ "$1" = --n ]; then N=$2; shift; fi; shift; done; show $N $#',
    'set -- -n 4 -v -abx rest; while getopts "n:va:" o; do case $o in n) N=$OPTARG ;; v) V=yes ;; a) A=$OPTARG ;; '
    'esac; done; shift $((OPTIND-1)); show $N $V $A "$@"',
    'TP=2 PP=4 # layout\nexport E=8\nARGS=(\n  --tp $TP # comment\n  --pp "$PP"\n)\nshow "${ARGS[@]}" $E\n',
    "A=1 B=2\nif [ $A = 1 ]; then C=x D=y\n\n# comment\nshow $C $D | cat; "
    "fi\nA=3 B=4 \\\n C=5\n[ $A = 3 ] && show $B $C\n",
    "f() {\n  local a=$1 b=$2\n  C=1 D=$a\n  show $C $D $b\n}\nf 9 8\n",
    'for x in {1..3} a{b,c}; do A+=" $x"; done; show $A " ${x}" " $((1+1))" "  $(echo y)"',
    "N=4; show $(( ${X:-3} * N )) $((${N}*3)) $(( ${#N} + 1 )); A=(1 2 3); show $(( ${A[1]} * ${#A[@]} )) $((A[2]*2))",
    'N=V; V=5; show ${!N}; A=(--x 1 --y 2); show "${A[@]:2}" "${A[@]:0:2}" ${A[-1]}; A[1]=z; A[4]=q; show "${A[@]}"',
    "for ((i = 0; i < 6; i += 2)); do A+=($i); done; until [ $i -ge 9 ]; do i=$((i+1)); done; "
    "show ${A[@]} $i $(seq 2 4)",
    "IFS=, read -r TP PP EP <<< '1,2,8'; read -r A B <<< ' x y z '; show $TP $PP $EP $A \"$B\"",
    "read -ra L <<< 'x y z'; IFS='x' read -r -a M <<< '2x4x8'; show ${L[1]} ${#L[@]} ${M[@]}",
    'readarray -t E <<< $\'a b\\nc\'; show "${E[@]}"; while read -r k v; do R+="$k=$v;"; '
    'done <<EOF\na 1\nb 2 3\nEOF\nshow "$R"',
    "while IFS= read -r l || [[ -n $l ]]; do [[ -z $l || $l == \\#* ]] && continue; R+=($l); "
    "done < <(printf '#c\\n\\nx y\\nz'); "
    'show "${R[@]}"',
    "X=5; "
    "read -r -d '' C <<'EOF' || true\n--a $X\n --b 2\nEOF\nread -r -d '' D <<EOF\n"
    '--a $X \\$X "q" ${Y:-2}\nEOF\nshow $C; show "$C" "$D"',
    'X=5; C=$(cat <<EOF\n--a $X "q r"\n--b 2\nEOF\n); show $C; show "$C" "$(cat <<-\'E\'\n\t$X\n\tE\n)"',
    'f() { local s=$1; case $s in a) echo "--x 1" ;; *) echo "--y $s";; esac; }; A=($(f a)); '
    'show $(f b) ${#A[@]} "$(f a)"',
    'f() { echo "--n $1"; echo said >&2; [ "$2" = yes ] && echo --flag; return 0; }; A=$(f 3 yes); show $A `f 4 no`',
    "printf -v B -- '--a %d --b %s' 4 x; show $B $(printf -- '--x=%s ' 1 2 3) $(echo -n a; echo b) \"$(echo 'x  y')\"",
    'L=(1 2 3); K=$(IFS=,; echo "${L[*]}"); IFS=,; M="${L[*]}"; P=a,b; show $P; unset IFS; show $K $M $P',
    "A='a*'; [[ ab == a\\* ]] && B=1 || B=2; [[ '#x' == \\#* ]] && C=1 || C=2; show $B $C a\\ b\\*",
    "A=1; f() { local A=2 B; B=$A; g; C=$B; }; g() { show $A ${B:-none}; }; f; g; show ${B:-none} $C",
    "f() { [ $1 = a ] || return 1; show in; }; f a && show yes; f b || show no; "
    "if f b; then show bad; else show good; fi",
    "big() { [ $1 -gt 10 ]; }; big 20 && A=1 || A=2; if big 5; then B=1; else B=2; fi; show $A $B",
    "T=true F=false; $T && A=1 || A=2; $F && B=1 || B=2; if $F; then C=1; elif $T; then C=2; fi; show $A $B $C",
    "A=1,2,3; B=(${A//,/ }); show ${B[1]} ${#B[@]} n{08..11} {1..3}",
    'A=1 B=2; X=$A/r/$B/x; show $A/r/$B/c.sh --x=${A}/$B.c "$A"-$B-$A-y /$A/$B $A,$B,$X a$A/b$B',
    'i=0; while [ $i -lt 3 ]; do L+="$i "; i=$((i+1)); done; show "$L"; for a; do show $a; done',
]


def words(script: Script) -> list[list[str]]:
    return [[word.text for word in command.words[1:]] for command in script.commands if command.words[0].text == "show"]


@pytest.mark.parametrize("text", EXPANSIONS)
def test_words_come_out_as_bash_gives_them(text: str, tmp_path: Path) -> None:
    show = 'show() { printf \'%s\\0\' "$#" "$@"; }; export -f show\n'
    said = subprocess.run(["bash", "-c", show + text], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    flat, expected = said.stdout.split("\0")[:-1], []
    while flat:
        count = int(flat[0])
        expected.append(flat[1 : count + 1])
        flat = flat[count + 1 :]
    assert words(read_script(text)) == expected


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


def test_files_a_shell_would_look_for_and_the_home_folder_are_marked() -> None:
    (command,) = read_script("A=(/y/*.c)\ngo ~/a /x/*.b 'c*' \"d?\" ${A[@]}\n").commands
    assert [word.text for word in command.words if word.pattern] == ["/x/*.b", "/y/*.c"]
    assert [gap.name for word in command.words for gap in word.gaps] == ["HOME"]
    assert read_script("go ~/a\n", given={"HOME": "/h"}).commands[0].words[1].text == "/h/a"


def test_what_a_key_of_an_array_holds_is_asked_for() -> None:
    (command,) = read_script("declare -A M=([a]=1 [b]=2)\ngo ${M[a]} ${M[$K]}\n").commands
    assert [word.text for word in command.words[:2]] == ["go", "1"]
    assert [(gap.name, gap.text) for word in command.words for gap in word.gaps] == [("K", "${M[$K]}")]


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


def test_the_home_folder_is_known_behind_a_colon_of_an_assignment_too() -> None:
    script = read_script("PATH=~/bin:/usr/bin:~/x:a~; show $PATH; show ~/y a:~/z\n", given={"HOME": "/home/me"})
    assert words(script) == [["/home/me/bin:/usr/bin:/home/me/x:a~"], ["/home/me/y", "a:~/z"]]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("A / B > 8 ? 8 : A / B", 2),
        ("A > 9 ? 1 : B > 9 ? 2 : 3", 3),
        ("A && Z", 0),
        ("A || Z", 1),
        ("!Z", 1),
        ("A != B", 1),
        ("A > 4 && B < 2 ? 1 : 7", 7),
        ("1 << 3 | 1", 9),
        ("2 ** B", 16),
    ],
)
def test_arithmetic_has_tests_and_choices(expression: str, value: int) -> None:
    assert words(read_script(f"A=8; B=4; Z=0\nshow $(({expression}))\n")) == [[str(value)]]


def test_what_arithmetic_lacks_is_asked_by_the_variable_that_lacks_it() -> None:
    (command,) = read_script("NODES=$(wc -l < hosts)\nWORLD=$((NODES * 8))\nshow $((4 * WORLD * OTHER))\n").commands
    assert [(gap.name, gap.line) for gap in command.words[1].gaps] == [("NODES", 1), ("OTHER", 3)]
    assert words(read_script("N=$(x)\nshow $((4 * N))\n", given={"N": "2"})) == [["8"]]


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
