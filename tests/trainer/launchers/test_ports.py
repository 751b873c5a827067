"""Ports that are still free when they are used, on a machine with many outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trainer.launchers import ports
from trainer.launchers.ports import free_port


def test_a_port_is_none_that_the_kernel_hands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_HANDED_OUT", tmp_path / "range")
    found = [free_port("127.0.0.1") for _ in range(20)]
    assert all(10_000 <= port < 32_768 for port in found)
    assert len(set(found)) > 10
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port("127.0.0.1")))


@pytest.mark.parametrize("text", ["1024 65535", "", "?"])
def test_where_the_kernel_leaves_none_it_chooses(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(ports, "_HANDED_OUT", tmp_path / "range")
    assert free_port() > 0


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        with ports._listener("127.0.0.1", [taken, 0]) as listener:
            assert listener.getsockname()[1] != taken
