"""Launcher `slurm`: ranks on the nodes of an allocation, or of a job that is submitted for each burst.

`launcher.py` starts them with the commands of `argv.py`; `monitor.py` reports how they wait and end, from Slurm's
states (`states.py`) and programs (`clients.py`); `job.py` submits and follows one job per burst.
"""
