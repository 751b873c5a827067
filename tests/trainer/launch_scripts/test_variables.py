"""Variables whose value refers to themselves (PATH=/x:$PATH): what is inherited stays, and no element is empty."""

from __future__ import annotations

import subprocess

import pytest

from trainer.launch_scripts.variables import expanded, export_line


@pytest.mark.parametrize(
    ("value", "inherited", "is_then"),
    [
        ("/opt/bin:${X}", "/usr/bin:/bin", "/opt/bin:/usr/bin:/bin"),
        ("${X}:/opt/bin", "/usr/bin", "/usr/bin:/opt/bin"),
        ("/a:$X:/b", "/m", "/a:/m:/b"),
        ("/opt/bin:${X}", "", "/opt/bin"),
        ("plain $Y", "/m", "plain $Y"),
    ],
)
def test_a_value_is_the_same_in_a_burst_and_in_a_script(value: str, inherited: str, is_then: str) -> None:
    assert expanded("X", value, {"X": inherited}) == is_then
    script = f'{export_line("X", value)}\nprintf %s "$X"'
    said = subprocess.run(["bash", "-c", script], env={"X": inherited}, capture_output=True, text=True, check=True)
    assert said.stdout == is_then
