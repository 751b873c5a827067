"""A tuner that runs bursts of the fake worker until it is killed: `python tuner.py <folder>`."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from trainer.launchers.local import LocalLauncher
from trainer.launchers.warm import start_ranks

HERE = Path(__file__).parent
ACTS = {0: [["phase", "forward"], ["grandchild", "kept"], ["grandchild", "wiped"], ["phase", "backward"]]}


def main(folder: Path) -> None:
    ranks = start_ranks(
        LocalLauncher(),
        nodes=1,
        ranks_per_node=1,
        env={"PYTHONPATH": str(HERE)},
        folder=folder / "ranks",
        module="fake_worker",
    )
    for number in itertools.count():
        burst = folder / f"{number:06d}"
        burst.mkdir()
        (burst / "acts.json").write_text(json.dumps(ACTS if number < 5 else {}))
        if ranks.run(burst, deadline_s=3600).failure is not None:
            sys.exit("a burst failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
