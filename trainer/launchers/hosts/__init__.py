"""Launcher `hosts`: ranks on machines reached over ssh, without a scheduler.

`launcher.py` starts them by one ssh per host (`connect.py`); `monitor.py` reports which host was lost. A keeper
(`trainer.launchers.nodes`) runs on each host.
"""
