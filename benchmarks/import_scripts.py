"""Checks the import of launch scripts with real bash: compares the command that bash starts with that of the export.

`python -m benchmarks.import_scripts [FOLDER…]` runs every script of the folders (default: those of the tests) by bash
with stubs on PATH, imports and exports it, and runs the export in the same way. The two commands must be equal to
Megatron-LM's parser, with words that it does not know in the same order, and values that only the job knows the same.
These runs are not isolated: use it for your own scripts only. With --recorded both commands are recorded in isolation,
for scripts that are not yours: `--recorded $MEGATRON_LM/examples $MEGATRON_LM/tools`.
"""

from __future__ import annotations

import os
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.export import export
from autotune.importing import scripts
from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from trainer.errors import BadInputError
from trainer.frameworks.megatron_lm.agreement import differences
from trainer.frameworks.megatron_lm.arguments import ARGUMENTS
from trainer.launch_scripts.argv import split

STYLES = Path(__file__).parent.parent / "tests" / "autotune" / "importing" / "styles"
RECORDED = "--recorded"
RECORDS = "torchrun python python3 deepspeed accelerate"
PASSES = "srun env_ mpirun numactl nsys nohup_ apptainer docker"
ANSWERS = {
    "date": 'exec /bin/date -d @1764590405 "$@"',
    "hostname": "echo cn1",
    "scontrol": "printf 'cn1\\ncn2\\n'",
    "nvidia-smi": "for i in 1 2 3 4 5 6 7 8; do echo GPU $i; done",
    "sleep": ":",
    **dict.fromkeys(("module", "conda", "kill", "sbatch", "rm"), ":"),
}
STUB = """#!/bin/bash
name=${0##*/}
case " RECORDS " in
  *" $name "*)
    [[ $name != python* || $1 != -c ]] || exec /usr/bin/python3 "$@"
    printf '%s\\0' "$name" "$@" >> "$MOE_BENCHMARK_RECORD"; printf '\\n\\0' >> "$MOE_BENCHMARK_RECORD"; exit 0 ;;
esac
for ((i = 1; i <= $#; i++)); do
  case ${!i##*/} in torchrun | python | python3 | bash) exec "${@:i}" ;; esac
done
"""
JOB = {
    "SLURM_JOB_ID": "991", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_NODELIST": "cn1,cn2",
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16", "SLURM_NODEID": "0",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """Result of one script.

    `same` is None if it was not imported; `why` is the reason, or the difference of the two commands.
    """

    name: str
    same: bool | None
    why: str
    seconds: float


def commands_of(script: Path, folder: Path) -> list[list[str]]:
    """Returns every command that bash starts, recorded by stubs on PATH."""
    stubs = folder / "stubs"
    if not stubs.exists():
        stubs.mkdir()
        for name in [*RECORDS.split(), *PASSES.split()]:
            (stubs / name).write_text(STUB.replace("RECORDS", RECORDS))
        for name, text in ANSWERS.items():
            (stubs / name).write_text(f"#!/bin/bash\n{text}\n")
        for each in stubs.iterdir():
            each.chmod(each.stat().st_mode | stat.S_IXUSR)
    record = folder / "record"
    record.write_bytes(b"")
    job = JOB | {"SLURM_SUBMIT_DIR": str(script.parent)} if "#SBATCH" in script.read_text() else {}
    env = {
        "PATH": f"{stubs}:/usr/bin:/bin",
        "HOME": os.path.expanduser("~"),
        "MOE_BENCHMARK_RECORD": str(record),
        **job,
    }
    python = folder / "venv" / "bin"
    python.mkdir(parents=True, exist_ok=True)
    if not (python / "python").exists():
        (python / "python").symlink_to(stubs / "python")
    env["ENV"] = str(python.parent)
    words = ["bash", str(script)]
    subprocess.run(words, cwd=script.parent, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                   start_new_session=True)  # a script may kill its own group  # fmt: skip
    said = record.read_bytes().decode().split("\n\0")
    return [each.split("\0")[:-1] for each in said if each]


def arguments(command: Sequence[str]) -> list[str]:
    """Returns the arguments after the program's name."""
    at = next((at for at, word in enumerate(command) if word.endswith(".py")), 0)
    return list(command[at + 1 :])


def difference(own: Sequence[str], other: Sequence[str], world_size: int, *, announced: Collection[str]) -> str:
    """Returns the difference of two argument lists that was not announced; "" if there is none."""
    found = differences(own, other, world_size=world_size)
    if silent := {name: values for name, values in found.items() if name not in announced}:
        return str(silent)
    unknown = [[each.argv for each in split(argv) if each.flag not in ARGUMENTS] for argv in (own, other)]
    return "" if unknown[0] == unknown[1] else f"{unknown[0]} and {unknown[1]}"


def tried(script: Path, folder: Path) -> Case:
    own = commands_of(script, folder)
    started_at = time.perf_counter()
    try:
        made = imported(ImportOptions(file=str(script), gpu="h100", nodes=None, given={}))
    except BadInputError as error:
        return Case(name=script.name, same=None, why=str(error), seconds=time.perf_counter() - started_at)
    seconds = time.perf_counter() - started_at
    target = "slurm" if "#SBATCH" in script.read_text() else "megatron-lm"
    exported = folder / f"exported-{script.name}"
    exported.write_text(export(made.recipe, target).replace("#SBATCH", "# SBATCH" if target != "slurm" else "#SBATCH"))
    # run the export with stubs in place of launchers, which record the command of a rank
    again = commands_of(exported, folder)
    if not own or not again:
        return Case(name=script.name, same=None, why=f"bash starts {len(own)} and {len(again)}", seconds=seconds)
    best = max(own, key=lambda command: sum(word.startswith("--") for word in command))
    why = difference(arguments(best), arguments(again[-1]), made.recipe.world_size, announced=made.changed)
    return Case(name=script.name, same=not why, why=why, seconds=seconds)


def recorded(script: Path, folder: Path) -> Case:
    """Compares the script and its export by recordings in isolation; arguments the script needs are made up."""
    started_at = time.perf_counter()
    asked = ImportOptions(file=str(script), gpu="h100", nodes=1, given={"vocab_size": "32000"})
    try:
        made, own = imported(asked), scripts.started(script.read_text(errors="replace"), asked)
    except BadInputError as error:
        return Case(
            name=script.name, same=None, why=str(error).partition("\n")[0], seconds=time.perf_counter() - started_at
        )
    seconds = (time.perf_counter() - started_at) / 2
    exported = folder / "exported.sbatch"
    exported.write_text(export(made.recipe, "slurm"))
    again = scripts.started(exported.read_text(), ImportOptions(file=str(exported), gpu="h100"))
    why = difference(own.argv, again.argv, made.recipe.world_size, announced=made.changed)
    return Case(name=script.name, same=not why, why=why, seconds=seconds)


def scripts_of(folders: Sequence[str]) -> list[Path]:
    found = [path for folder in folders or [str(STYLES)] for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return [path for path in found if path.suffix in (".sh", ".sbatch", ".slurm")]


def main(words: Sequence[str]) -> int:
    cases = []
    for script in scripts_of([word for word in words if word != RECORDED]):
        with tempfile.TemporaryDirectory() as folder:
            cases.append((recorded if RECORDED in words else tried)(script, Path(folder)))
        if not cases[-1].same:
            print(f"{cases[-1].name}: {cases[-1].why}")
    same, differ = sum(case.same is True for case in cases), sum(case.same is False for case in cases)
    print(f"{len(cases)} scripts: {same} the same, {differ} different, {len(cases) - same - differ} not compared")
    print(f"median {statistics.median(case.seconds for case in cases):.2f} s a script")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
