"""Words of a script as bash itself gives them to a command: expansions, tests, loops, arithmetic."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.trainer.command_line.shell.shown import words
from trainer.command_line.shell import read_script

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
    "case a in a) A=1 ;& b) B=2 ;& c) C=3 ;; *) D=4 ;; esac; show $A $B $C ${D:-none}",
    "case ab in a*) A=1 ;;& *c) B=2 ;;& *b) C=3 ;; *) D=4 ;; esac; show $A ${B:-none} $C ${D:-none}",
    "case ab in x) X=1 ;& y) Y=2 ;; a*) A=1 ;;& ab) B=2 ;& c) C=3 ;;& *) D=4; esac; show ${X:-0}${Y:-0} $A $B $C $D",
    "declare -i N=3; N+=2; show $N; N=2*N; show $N; N+=N; show $N; declare +i N; N+=1; show $N",
    "declare -i M; M+=4; M=M-1; W=7; M+=W; ((M += 1)); M+=1; show $M; unset M; M=1+1; show $M",
    "f() { local -i k=2; k+=3; show $k; }; f; k=1; k+=1; show $k; typeset -ix E=2+1; show $E",
    "f() { R=1; }; if f && [ $R = 1 ]; then A=2; fi; show $A $R; if ! f || [ $R = 2 ]; then B=1; else B=2; fi; show $B",
    "f() { R=$1; [ $R -gt 2 ]; }; if f 1 || f 3; then A=$R; fi; if f 5; [ $R = 5 ]; then B=$R; fi; show $A $B",
    "f() { R=$1; [ $R -gt 2 ]; }; if f 1; then A=1; elif f 4 && [ $R = 4 ]; then A=2; else A=3; fi; show $A $R",
    "( exit 1 ); show after; ( A=1; exit 0; A=2 ) && show yes; (exit 3) || show no; ! (exit 1) && show not",
    "if (exit 1); then A=1; else A=2; fi; (true; false) || B=1; (f() { X=1; }; set -- a b; show $#); show $A $B",
    "f() { ( return 1 ) || C=1; ( exit 1 ); show in $C; }; f; g() ( exit 2; ); g || D=1; show $D; h() ( exit 0 ); "
    "h && show h",
    "A=1; (A=2; export A; (A=3; show $A); show $A); show $A; for x in 1 2; do (exit $x); L+=$x; done; show $L",
    "declare -i N M; read N M <<< '2+5 N'; show $N $M; for N in 1+1 2-5; do L+=$N,; done; show $L $N; set -- -n 4-1; "
    "while getopts n: o; do case $o in n) M=$OPTARG ;; esac; done; show $M; printf -v M %s 2+2; show $M",
    'declare -ai A=(1+1 2); show "${A[@]}"; A+=(3*3); A[0]=7-1; show "${A[@]}"; read -ra A <<< 1+1; show $A',
    "declare -Ai M=([a]=1+1 [b]=3); M[a]+=5; M[b]=2*2; show ${M[a]} ${M[b]}; declare -i N; : ${N:=2+5}; show $N",
    "declare -ai A; mapfile -t A < <(printf '1+1\\n2*3'); show \"${A[@]}\"; N=4; declare -i N='N ? 3 : 4'; show $N",
    "x=$(echo 5; exit 1) || x=7; y=$(echo 5) || y=7; show $x $y; x=$(false) && A=1 || A=2; show $A",
    "f() { echo 3; return $1; }; x=$(f 1) || x=7; y=$(f 0) && y=8; if z=$(f 2); then A=1; fi; show $x $y $z ${A-2}",
    'a=$(exit 1) b=2 && A=1 || A=2; (exit 1); D=$(cd "$(dirname "$0")" && pwd) || A=3; f() { local x=$(exit 1) || A=4; '
    "}; f; show $A",
    "(exit 256) && A=1 || A=2; (exit 257) && B=1 || B=2; f() { return 512; }; f && C=1 || C=2; show $A $B $C",
    'A=(a b); A+=c; show "${A[@]}"; A=d; show "${A[@]}"; declare -ai N=(1+1 2); N+=5; show "${N[@]}"',
    'A=(1 2); f() { local A=$A B; show "${A[@]}" ${B:-none}; A=7; B=8; local B; show $A $B; }; B=1; f; show $B; '
    'show ${A[@]}; g() { local A=("${A[@]}" 3); show ${A[@]}; }; g; show ${A[@]}',
    "declare -i N=3; f() { local N; N=1+1; show $N; local M=$N; show $M; }; f; N=1+1; show $N",
    '[ -z "$Z" ] && (exit 1) || A=1; show $A; ([ -n "$Z" ] || exit 1; show never) || show left',
]


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


def test_the_home_folder_is_known_behind_a_colon_of_an_assignment_too() -> None:
    script = read_script("PATH=~/bin:/usr/bin:~/x:a~; show $PATH; show ~/y a:~/z\n", given={"HOME": "/home/me"})
    assert words(script) == [["/home/me/bin:/usr/bin:/home/me/x:a~"], ["/home/me/y", "a:~/z"]]


def test_files_a_shell_would_look_for_and_the_home_folder_are_marked() -> None:
    (command,) = read_script("A=(/y/*.c)\ngo ~/a /x/*.b 'c*' \"d?\" ${A[@]}\n").commands
    assert [word.text for word in command.words if word.pattern] == ["/x/*.b", "/y/*.c"]
    assert [gap.name for word in command.words for gap in word.gaps] == ["HOME"]
    assert read_script("go ~/a\n", given={"HOME": "/h"}).commands[0].words[1].text == "/h/a"
