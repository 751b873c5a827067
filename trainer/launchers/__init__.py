"""Launchers start ranks: `local` on this machine, `slurm` and `hosts` on several, each node's by an agent.

A launcher starts any command as ranks; on top of one, `warm` keeps ranks of our own worker up between bursts.
"""

from trainer.launchers.launcher import Launcher, Processes, RankResult, Ranks

__all__ = ["Launcher", "Processes", "RankResult", "Ranks"]
