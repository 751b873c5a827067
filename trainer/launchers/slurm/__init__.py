"""Launcher `slurm`: ranks on the nodes of an allocation, or of a job that is submitted for each burst.

The tuner's side is `launcher.py` (starts), `processes.py` (what was started) and `supervise.py` (outlives the tuner,
ends what it left); on every node one `keeper.py` runs torchrun's agent. They talk by files in the control folder of
the start (`folder.py`), which all nodes share; what Slurm says is read by `states.py`.
"""
