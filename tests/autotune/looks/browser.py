"""A page as a real browser sees it: headless Chromium without network, its document after scripts ran."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.conftest import HANG_S

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
WITHOUT_CHROMIUM = pytest.mark.skipif(not CHROMIUM, reason="without Chromium (apt-get install chromium)")
Test = TypeVar("Test", bound=Callable[..., Any])
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1200,1600",
)

MEASURE = """addEventListener("load", () => {
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const every = [...document.querySelectorAll(".scroll, pre, body, dl, p")];
  const wide = every.filter((one) => one.scrollWidth > one.clientWidth + 1);
  const words = wide.map((one) => one.tagName + " " + one.textContent.trim().slice(0, 60));
  document.documentElement.dataset.cut = words.join("|") || "none";
});"""


def needs_browser(test: Test) -> Test:
    marked: Test = pytest.mark.browser(WITHOUT_CHROMIUM(test))
    return marked


def document_of(page: Path, profile: Path, fragment: str = "", *, wait_ms: int = 0) -> str:
    """Returns the document of a file after its scripts have run.

    `fragment`: the part of its address after #; `wait_ms`: the browser's own time that later scripts get.
    """
    address = page.as_uri() + (f"#{fragment}" if fragment else "")
    waiting = [f"--virtual-time-budget={wait_ms}"] if wait_ms else []
    command = [CHROMIUM, *FLAGS, *waiting, f"--user-data-dir={profile}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S).stdout


def cut_off(page: Path, profile: Path, width: int) -> list[str]:
    """Returns the first words of the tables and figures that are wider than their place, on a page `width` pixels
    wide."""
    script = f"<script>{MEASURE}</script>"
    measured = page.with_name(f"measured-{page.name}")
    measured.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
    flags = [flag for flag in FLAGS if not flag.startswith("--window-size")]
    command = [CHROMIUM, *flags, f"--window-size={width},1200", f"--user-data-dir={profile}", "--dump-dom"]
    text = subprocess.run(
        [*command, measured.as_uri()], capture_output=True, text=True, check=True, timeout=HANG_S
    ).stdout
    found = re.search(r'data-cut="([^"]*)"', text)
    assert found, text[:500]
    return [] if found[1] == "none" else found[1].split("|")


def count(document: str, pattern: str) -> int:
    return len(re.findall(pattern, document))
