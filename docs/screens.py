"""`python -m docs.screens FOLDER`: renders what a user sees as pictures: each page at two widths, light and dark.

The study is run first, with the simulated engine; a browser without network renders the pages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from rich.console import Console

from autotune.cli import main
from autotune.report import write_report, write_running
from autotune.status.terminal import show_status
from autotune.tuning.journal import JOURNAL, read_study
from autotune.tuning.study_status import study_status

WIDTHS = (1280, 600)
SCHEMES = {"light": 1, "dark": 0}  # Chromium's values of preferredColorScheme
HEIGHTS = {"studies": 1800, "status": 400}  # heights of pages shorter than the others
HEIGHT = 2600
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND")
RECIPE = """\
name: qwen3-30b-a3b-16xh100
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2, gpus_per_node: 8}
training: {seq_length: 4096, global_batch_size: 256}
parallelism: {ep: 8}
knobs:
  {use_distributed_optimizer: true, recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}
burst: {engine: simulated, trace_steps: 2}
tune: {planned_gpu_hours: 20000}
"""
BUDGET, PART = 8, 0.6  # bursts of the study; share of its journal for the running one


def draw(folder: Path) -> Iterator[Path]:
    """Yields the pictures as they are written."""
    pages = folder / "pages"
    for name, page in _pages(pages).items():
        for width in WIDTHS:
            for scheme, number in SCHEMES.items():
                picture = folder / f"{name}-{width}-{scheme}.png"
                size = (width, HEIGHTS.get(name, HEIGHT))
                _photograph(page, picture, size, number, folder / "profile")
                yield picture
    shutil.rmtree(folder / "profile", ignore_errors=True)


def _bisected(folder: Path) -> Path:
    """Bisects the recipe as it is against one without recompute and with `manual_gc`; returns the study."""
    study, better = folder / "slower", folder / "better.yaml"
    better.write_text(
        RECIPE.partition("knobs:")[0]
        + "knobs: {use_distributed_optimizer: true, manual_gc: true}\nburst: "
        + RECIPE.partition("burst: ")[2]
    )
    if not study.exists():
        _quietly("bisect", str(better), str(folder / "recipe.yaml"), "--study", str(study))
    return study


def _pages(folder: Path) -> dict[str, Path]:
    """Writes every page into the folder; returns name → page."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe, study = folder / "recipe.yaml", folder / "studies" / "ended"
    recipe.write_text(RECIPE)
    if not study.exists():
        _quietly("run", str(recipe), "--study", str(study), "--budget", str(BUDGET))
    write_report(study, gpu_hour_price=2.5)
    running = _running(study, folder / "studies" / "running")
    _quietly("diagnose", str(study / "bursts" / "0001"), "--html", str(folder / "diagnosis.html"), "--force")
    first = str(study / "0")
    _quietly("gap", first, "--trace", str(study / "bursts" / "0001"), "--html", str(folder / "gap.html"), "--force")
    _quietly("studies", str(folder / "studies"), "--html", str(folder / "studies.html"), "--force")
    return {
        "report": study / "report.html",
        "running": running / "report.html",
        "diagnosis": folder / "diagnosis.html",
        "gap": folder / "gap.html",
        "bisect": _bisected(folder) / "report.html",
        "studies": folder / "studies.html",
        "status": _status(running, folder / "status.html"),
    }


def _running(study: Path, folder: Path) -> Path:
    """Returns a study folder with the first PART of the journal, and the page its tuner would write at that point."""
    lines = (study / JOURNAL).read_text().splitlines(keepends=True)
    folder.mkdir(exist_ok=True)
    (folder / JOURNAL).write_text("".join(lines[: round(PART * len(lines))]))
    history = read_study(folder)
    write_running(history, study_dir=folder, now=history.last_event_at + 20)
    return folder


def _status(study: Path, file: Path) -> Path:
    """Writes the output of `status` on the running study as a terminal shows it."""
    history = read_study(study)
    now = history.last_event_at + 20
    said = StringIO()
    with redirect_stdout(said):
        show_status(study_status(history, folder=str(study), now=now, held=True), now)
    console = Console(record=True, width=100, file=StringIO())
    console.print(said.getvalue(), markup=False, highlight=False)
    file.write_text(f'<body style="margin: 0">{console.export_svg(title="moe-autotune status")}</body>')
    return file


def _quietly(*words: str) -> None:
    with redirect_stdout(StringIO()):
        if main(words) == 2:
            raise SystemExit(f"moe-autotune {' '.join(words)} was refused")


def _photograph(page: Path, picture: Path, size: tuple[int, int], scheme: int, profile: Path) -> None:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    command = [
        browser, *FLAGS, f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}", page.resolve().as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=300)


if __name__ == "__main__":
    started = time.monotonic()
    for number, made in enumerate(draw(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screens")), 1):
        print(f"{number}: {made} ({time.monotonic() - started:.0f} s)", flush=True)
