"""Launchers: start ranks. `local` is torchrun on this machine, `slurm` and `hosts` torchrun's agents on several.

A launcher starts any command as ranks; `warm` keeps ranks of our own worker up between bursts on top of one.
"""

from trainer.launchers.launcher import Launcher, Processes, RankResult, Ranks

__all__ = ["Launcher", "Processes", "RankResult", "Ranks"]
