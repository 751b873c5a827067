"""Launcher `hosts`: ranks on machines that are reached over ssh, without a scheduler.

`launcher.py` starts them, one ssh a host under `connect.py`; `monitor.py` says which host was lost. What runs on each
of them is the keeper of `trainer.launchers.nodes`.
"""
