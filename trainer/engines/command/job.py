"""The job of one burst: the command of every rank, its environment, and its output files."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainer.burst import Burst
from trainer.engines.command.injected_folder import INJECTED
from trainer.engines.command.setup import script_of, start_of
from trainer.engines.command.traced import traced_ranks
from trainer.frameworks import Framework, framework_named
from trainer.frameworks.bounds import Bounds
from trainer.frameworks.burst import COMMAND, WRITTEN, BurstRequest
from trainer.frameworks.variables import rank_variables
from trainer.launch_scripts.expanding import with_values
from trainer.launch_scripts.variables import expanded, is_inherited, names_itself
from trainer.launchers import Processes, mailbox
from trainer.recipe.sections import TrainerSettings
from trainer.secrets import mask_file, masked

KEPT_BYTES = 4 << 20  # bytes kept at either end of a log


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of one burst.

    `folder` is the burst's folder as an absolute path, since the trainer may run in another one.
    """

    burst: Burst
    trainer: TrainerSettings
    bounds: Bounds
    folder: Path

    @property
    def framework(self) -> Framework:
        return framework_named(self.trainer.kind)

    @property
    def written(self) -> Path:
        return self.folder / WRITTEN

    @property
    def ranks_folder(self) -> Path:
        return self.folder / "ranks"

    @property
    def log_folder(self) -> Path:
        return mailbox.log_path(self.folder, 0).parent

    def clear(self) -> None:
        """Deletes files of an earlier attempt at this burst, which could be mistaken for this one's."""
        shutil.rmtree(self.folder / "trace", ignore_errors=True)
        for folder in (self.written, self.ranks_folder, self.log_folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def argv(self) -> tuple[str, ...]:
        """Returns the command of one rank; writes the trainer's part of it, with secrets masked, and the setup script,
        if there is one, into the burst's folder."""
        request = BurstRequest(
            recipe=self.burst.recipe,
            trainer=self.trainer,
            bounds=self.bounds,
            ranks=traced_ranks(self.burst.recipe, watched=self.burst.watch),
            folder=self.written,
        )
        argv = with_values(self.framework.burst_argv(request), self.trainer.expand, os.environ)
        text = self.folder / COMMAND
        text.write_text(masked(shlex.join(argv)) + "\n")
        prefix = _nsys(request, self.folder / "trace") if request.nsys_trace else ()
        return (*self._start(), *prefix, *argv)

    def _start(self) -> tuple[str, ...]:
        """Returns the words before the command that set variables for the trainer alone.

        In the environment of the job they would also change the programs that start the ranks.
        """
        if self.trainer.setup:
            script = self.folder / "setup.sh"
            script.write_text(
                script_of(
                    self.trainer.setup,
                    {**rank_variables(self.burst.recipe), **self._expanded_here()},
                    pythonpath=os.environ.get("PYTHONPATH", ""),
                    injected=INJECTED if self.trainer.inject else None,
                )
            )
            return start_of(self.trainer.setup, script)
        own = self.rank_variables()
        apart = [f"{name}={value}" for name, value in own.items() if _of_programs(name) and name != "PYTHONPATH"]
        return ("env", "-u", "PYTHONSAFEPATH", f"PYTHONPATH={self._pythonpath(own)}", *apart)

    def rank_variables(self) -> dict[str, str]:
        """Returns the recipe's environment variables for a rank, with the values of `trainer.expand` and inherited
        values (as of secrets) filled in."""
        own = rank_variables(self.burst.recipe)
        values = with_values(tuple(own.values()), self.trainer.expand, os.environ)
        return {name: expanded(name, value, os.environ) for name, value in zip(own, values, strict=True)}

    def _expanded_here(self) -> dict[str, str]:
        """Returns the variables whose values are expanded here and not by the setup script."""
        own = rank_variables(self.burst.recipe)
        return {name: value for name, value in self.rank_variables().items() if own[name] in self.trainer.expand}

    def _pythonpath(self, own: dict[str, str]) -> str:
        theirs = own.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        injected = [str(INJECTED)] if self.trainer.inject else []
        return os.pathsep.join([*injected, *filter(None, theirs.split(os.pathsep))])

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
        theirs = {name: value for name, value in self.rank_variables().items() if not _of_programs(name)}
        added_to = [name for name, value in rank_variables(recipe).items() if names_itself(name, value)]
        for name in added_to if self.trainer.setup else ():  # the script extends the values that its lines set
            if not is_inherited(name, rank_variables(recipe)[name]):
                theirs.pop(name, None)
        return {**theirs, **ours}

    def keep_logs(self, processes: Processes) -> None:
        """Copies every rank's output and the launcher's log into the burst's folder, with secrets masked; of a long log
        the start and the end. Masks secrets in py-spy's files and in the framework's configuration, too."""
        for rank in range(processes.world_size):
            with mailbox.log_path(self.folder, rank).open("w") as log:
                for path in processes.outputs(rank):
                    log.write(masked(_ends(path)))
        (self.log_folder / "agent.log").write_text(masked(processes.log))
        configuration = self.framework.configuration
        left = self.written.glob(configuration) if configuration else ()
        for path in (*self.log_folder.glob("py-spy*"), *left):
            mask_file(path)


def _of_programs(name: str) -> bool:
    """Returns whether a variable changes how programs are found or loaded.

    The programs that start the ranks run without it.
    """
    return name == "PATH" or name.startswith(("PYTHON", "LD_"))


def _ends(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as source:
        if size <= 2 * KEPT_BYTES:
            return source.read().decode(errors="replace")
        start = source.read(KEPT_BYTES)
        source.seek(size - KEPT_BYTES)
        left_out = f"\n... {size - 2 * KEPT_BYTES} bytes left out ...\n"
        return start.decode(errors="replace") + left_out + source.read().decode(errors="replace")


def _nsys(request: BurstRequest, folder: Path) -> tuple[str, ...]:
    """Returns the words that run Nsight Systems around the traced ranks; the trainer starts and stops the capture.

    They are a script for sh, since every rank has the same command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    profile = (
        f"exec nsys profile -s none -t nvtx,cuda --capture-range=cudaProfilerApi --capture-range-end=stop "
        f'--force-overwrite=true -o {shlex.quote(str(folder))}/rank"$RANK" "$@"'
    )
    ranks = "|".join(map(str, request.ranks))
    return ("sh", "-c", f'case "$RANK" in {ranks}) {profile};; *) exec "$@";; esac', "sh")
