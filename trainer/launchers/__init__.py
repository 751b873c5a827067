"""Launchers start ranks: `local` by torchrun on this machine, `slurm` and `hosts` by torchrun's agents on several.

A launcher starts any command as ranks; on top of one, `warm` keeps ranks of our own worker up between bursts.
"""

from trainer.launchers.launcher import Launcher, Processes, RankResult, Ranks

__all__ = ["Launcher", "Processes", "RankResult", "Ranks"]
