"""Scripts beside mount points, such as a home in a folder of many that are mounted one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.autotune.outside import mounted
from tests.conftest import HANG_S
from trainer.recording.jail import MAX_OVERLAYS, Isolation
from trainer.recording.record import FIRST, JobCommand, _run, isolation_here


@pytest.mark.parametrize("beside", [1, MAX_OVERLAYS + 1])
def test_a_script_in_one_of_many_folders_beside_a_mount_point_is_found(beside: int, tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    for number in range(beside):
        (homes / f"user{number}").mkdir(parents=True)
    script = homes / "user0" / "train.sh"
    script.write_text("cat note; python pretrain_gpt.py --num-layers 2 --hidden-size 8\n")
    (homes / "user0" / "note").write_text("beside it")
    if isolation_here() is not Isolation.NAMESPACES:
        pytest.skip("only namespaces copy the file system")
    with mounted(homes / "mounted", "64k"):
        asked = JobCommand(argv=("bash", str(script)), cwd=str(script.parent), limit_s=int(HANG_S))
        found = _run(asked, FIRST, Isolation.NAMESPACES)
    assert [each["words"][:2] for each in found["trains"]] == [["python", "pretrain_gpt.py"]], found["stderr"]
    assert "beside it" in found["stdout"]
