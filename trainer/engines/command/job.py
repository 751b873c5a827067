"""One burst of the trainer: what every rank runs, in which environment, and where it writes."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainer.burst import Burst
from trainer.command_line.megatron_lm.beside import environment_beside
from trainer.command_line.megatron_lm.spelling import environment
from trainer.engines.command.bounds import Bounds
from trainer.engines.command.kinds import KINDS, Asked
from trainer.engines.command.traced import traced_ranks
from trainer.launchers import Processes, mailbox
from trainer.recipe.sections import TrainerSettings

INJECTED = Path(__file__).parent / "injected"


@dataclass(frozen=True, kw_only=True)
class Job:
    """`folder` is the burst's, absolute: the trainer may run in another."""

    burst: Burst
    trainer: TrainerSettings
    bounds: Bounds
    folder: Path

    @property
    def written(self) -> Path:
        return self.folder / "trainer"

    @property
    def ranks_folder(self) -> Path:
        return self.folder / "ranks"

    @property
    def log_folder(self) -> Path:
        return mailbox.log_path(self.folder, 0).parent

    def clear(self) -> None:
        """What an earlier attempt at the burst left would be taken for this one's."""
        for folder in (self.written, self.ranks_folder, self.log_folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def argv(self) -> tuple[str, ...]:
        """What one rank runs. `env` sets PYTHONPATH for the trainer alone: what starts it has our own packages."""
        asked = Asked(
            recipe=self.burst.recipe,
            trainer=self.trainer,
            bounds=self.bounds,
            ranks=traced_ranks(self.burst.recipe, watched=self.burst.watch),
            folder=self.written,
        )
        argv = KINDS[self.trainer.kind](asked)
        (self.folder / "command.txt").write_text(shlex.join(argv) + "\n")
        prefix = _nsys(asked, self.folder / "trace") if asked.nsys_trace else ()
        return ("env", "-u", "PYTHONSAFEPATH", f"PYTHONPATH={self._pythonpath()}", *prefix, *argv)

    def _pythonpath(self) -> str:
        own = self.trainer.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        injected = [str(INJECTED)] if self.trainer.inject else []
        return os.pathsep.join([*injected, *filter(None, own.split(os.pathsep))])

    def environment(self) -> dict[str, str]:
        recipe = self.burst.recipe
        ours = {
            "MOE_AUTOTUNE_OUT": str(self.ranks_folder),
            "MOE_AUTOTUNE_LAST_STEP": str(self.bounds.measures.stop - 1),
        }
        if recipe.hardware.is_cpu:
            ours["CUDA_VISIBLE_DEVICES"] = ""
            if recipe.memory_limit_gib is not None:
                ours["MOE_AUTOTUNE_LIMIT_GIB"] = str(recipe.memory_limit_gib)
        theirs = {name: value for name, value in self.trainer.env.items() if name != "PYTHONPATH"}
        demanded = {name: beside.words[0] for name, beside in environment_beside(recipe).items()}
        return {**theirs, **demanded, **environment(recipe), **ours}

    def keep_logs(self, processes: Processes) -> None:
        """Every rank's output and the agent's log, beside the burst."""
        for rank in range(processes.world_size):
            with mailbox.log_path(self.folder, rank).open("wb") as log:
                for path in processes.outputs(rank):
                    log.write(path.read_bytes())
        (self.log_folder / "agent.log").write_text(processes.log)


def _nsys(asked: Asked, folder: Path) -> tuple[str, ...]:
    """Nsight Systems around the traced ranks alone; the trainer opens and closes the capture. As text for sh, because
    every rank runs the same command."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = (
        f"exec nsys profile -s none -t nvtx,cuda --capture-range=cudaProfilerApi --capture-range-end=stop "
        f'--force-overwrite=true -o {shlex.quote(str(folder))}/rank"$RANK" "$@"'
    )
    ranks = "|".join(map(str, asked.ranks))
    return ("sh", "-c", f'case "$RANK" in {ranks}) {profile};; *) exec "$@";; esac', "sh")
