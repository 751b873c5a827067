"""A trainer that prints what Megatron-LM prints and trains nothing: `fake_trainer.py ACTS --exit-interval N …`.

ACTS is JSON: `{"at": {"3": "nan"}, "step_s": 0.02}` does something at iteration 3 on the last rank: nan, oom, crash,
short (ends there with code 0), hang (all ranks), handled (all ranks: an exception that is caught and printed).
`{"refuse": TEXT}` fails before the first iteration, `{"linger": true}` does all and then does not end. `{"tell":
["PATH"]}` prints variables first, `{"with": TEXT}` is what a crash says, $NAME of the environment in it. `{"first":
1001}` is where it begins, `{"noise_mib": 9}` how much else it prints, `{"orphan": ["own", "empty"]}` leaves processes
with its own and an empty environment, and `{"looks": [["bar"], …]}` is how the line of each iteration looks, in turn:
see LOOKS.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINE = (
    " [2026-11-22 05:17:18.220966] iteration {i:>8}/     100 | consumed samples:           64 | elapsed time per "
    "iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 12.5 | learning rate: 3.000000E-04 | "
    "lm loss: {loss:.6E} | grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   {nan} |"
)


# forms of a line: rewritten by a progress bar, coloured, printed twice, run into others, of a locale with a comma
LOOKS = {
    "bar": lambda line: f"\r 10%|#   | 1/9\r{line}\r 20%|##  | 2/9",
    "colour": lambda line: line.replace("iteration ", "\x1b[1;32miteration\x1b[0m ").replace(": ", ": \x1b[33m"),
    "twice": lambda line: f"{line}\n{line}",
    "joined": lambda line: (
        f"[Rank 0] (after 1 iterations) memory (MB) | max allocated: 2,048.0 | {line}WARNING: a{line}"
    ),
    "comma": lambda line: re.sub(r"(\d)\.(\d)", r"\1,\2", line),
}


def leave(environment: str) -> None:
    """Starts a process in its own session that nobody waits for."""
    env: dict[str, str] | None = None if environment == "own" else {}
    subprocess.Popen(["/bin/sleep", "300"], start_new_session=True, env=env)


def value(flag: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default


def act(what: str | None) -> None:
    if what == "oom":
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if what == "crash":
        raise RuntimeError(os.path.expandvars(json.loads(sys.argv[1]).get("with", "something broke")))
    if what == "hang":
        time.sleep(3600)
    if what == "short":
        sys.exit(0)


def handled() -> None:
    """Raises an exception on every rank, catches and prints it."""
    try:
        import no_such_package  # pyrefly: ignore[missing-import]  # noqa: F401
    except ImportError:
        traceback.print_exc()


def backward_step(what: str | None) -> None:
    act(what)


def main() -> None:
    acts = json.loads(sys.argv[1])
    for name in acts.get("tell", ()):
        os.write(1, f"env {RANK} {name}={os.environ.get(name)}\n".encode())  # whole: ranks may share the file
    if "refuse" in acts:
        raise AssertionError(acts["refuse"])
    for environment in acts.get("orphan", ()):
        leave(environment)
    last, step_s = int(value("--exit-interval")), acts.get("step_s", 0.0)
    looks = acts.get("looks", [[]])
    first = acts.get("first", 1)
    last = -(-first // last) * last  # Megatron ends where the iteration can be divided by it
    for _ in range(acts.get("noise_mib", 0)):
        sys.stdout.write(("x" * 1023 + "\n") * 512 + "y" * (1 << 19))  # lines, and one that does not end
    for i in range(first, last + 1):
        what = acts.get("at", {}).get(str(i))
        if what == "handled":
            handled()
        what = what if what == "hang" or RANK == WORLD - 1 else None
        backward_step(what)
        if RANK == WORLD - 1:
            nan = int(acts.get("at", {}).get(str(i)) == "nan")
            line = LINE.format(i=i, ms=1e3 * step_s + i, loss=6.0 - i / 100, nan=nan, norm="nan" if nan else "0.700")
            for look in looks[(i - 1) % len(looks)]:
                line = LOOKS[look](line)
            print(line, flush=True)
        time.sleep(step_s)
    if "--use-pytorch-profiler" in sys.argv:
        folder = Path(value("--tensorboard-dir"))
        folder.mkdir(parents=True, exist_ok=True)
        trace = {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": RANK}, "traceEvents": []}
        (folder / f"host_{os.getpid()}.1.pt.trace.json").write_text(json.dumps(trace))
        (folder / f"events.out.tfevents.1.host.{os.getpid()}.0").write_text(" ".join(sys.argv))
    if acts.get("linger"):
        time.sleep(3600)
    print(f"[exiting program at iteration {last}]")


if __name__ == "__main__":
    main()
