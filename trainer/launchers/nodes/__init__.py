"""Ranks on several nodes, for any way to start programs there: a keeper on each node, and a shared control folder.

The tuner's side is `processes.py` (what was started) and `supervise.py` (outlives the tuner, and ends what it left); on
every node one `keeper.py` runs torchrun's agent. They communicate by files in the control folder of the start
(`folder.py`). Launchers `slurm` and `hosts` start programs on nodes and observe them there, by a `Monitor`.
"""
