"""Launcher `slurm`: ranks on the nodes of an allocation, or of a job that is submitted for each burst.

`launcher.py` starts them by the words of `argv.py`, `monitor.py` says how they wait and end, by what Slurm says
(`states.py`) and its programs tell (`clients.py`); `job.py` submits and follows a job a burst.
"""
