"""The job that #SBATCH lines ask for, as settings of launcher slurm. Source: sbatch(1) of Slurm 24.05."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.launch_scripts.launchers import options, stands_alone
from trainer.recipe.launching import SlurmSettings

# option of sbatch -> the setting of `burst.launcher.slurm`
SETTINGS = {
    **dict.fromkeys(("--account", "-A"), "account"),
    **dict.fromkeys(("--partition", "-p"), "partition"),
    **dict.fromkeys(("--qos", "-q"), "qos"),
    **dict.fromkeys(("--constraint", "-C"), "constraint"),
}
# further options that `allocate` keeps; sizes, names and logs are the tuner's own
ALLOCATES = {"--time": "--time", "-t": "--time", "--reservation": "--reservation", "--mem": "--mem",
             "--exclusive": "--exclusive", "--nodelist": "--nodelist", "-w": "--nodelist", "--exclude": "--exclude",
             "-x": "--exclude", "--switches": "--switches", "--segment": "--segment"}  # fmt: skip

OURS = ("--exclusive", "--mem=0")  # options of every job of the tuner


def job_settings(headers: Sequence[str]) -> dict[str, str]:
    """Returns the Slurm launcher's settings that #SBATCH lines (`headers`) give, by name; {} if they name no account,
    partition, QOS, time or reservation."""
    found: dict[str, str] = {}
    words: dict[str, str] = {}
    for flag, value in options(headers, "srun"):
        if flag in SETTINGS and value:
            found[SETTINGS[flag]] = value
        elif flag in ALLOCATES:
            name = ALLOCATES[flag]
            words[name] = name if stands_alone("srun", flag) or not value else f"{name}={value}"
    kept = [word for word in words.values() if word not in OURS]
    asks = found.keys() & {"account", "partition", "qos"} or words.keys() & {"--time", "--reservation"}
    return {**found, "allocate": " ".join(kept)} if asks else {}


def job_lines(settings: SlurmSettings) -> list[str]:
    """Returns options of sbatch for a script of ours, from the settings that `job_settings` reads."""
    named = {name: getattr(settings, name) for name in ("account", "partition", "qos", "constraint")}
    return [*(f"--{name}={value}" for name, value in named.items() if value), *(settings.allocate or "").split()]
