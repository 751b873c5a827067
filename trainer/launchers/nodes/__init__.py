"""Ranks on several nodes, whoever starts programs there: a keeper on each, a control folder that all of them share.

The tuner's side is `processes.py` (what was started) and `supervise.py` (outlives the tuner, ends what it left); on
every node one `keeper.py` runs torchrun's agent. They talk by files in the control folder of the start (`folder.py`).
Launchers `slurm` and `hosts` say how a program gets to a node and what is known of it there: a `Monitor`.
"""
