"""Commands that a script starts on other machines or in containers: what its own shell was prepared by is not there."""

from __future__ import annotations

from trainer.command_line.shell.words import Word

# a program -> the letters of its options with a value, whether a host stands before the command.
# Sources: ssh(1) of OpenSSH 9.9, pdsh(1) 2.35, clush(1) 1.9
_PROGRAMS = {
    "ssh": (frozenset("BbcDEeFIiJLlmOopQRSWw"), True),
    "rsh": (frozenset("l"), True),
    "pdsh": (frozenset("wxftugXRlMF"), False),
    "clush": (frozenset("wxgXftulocOm"), False),
}


def behind_ssh(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What is run on the other machine; () for any other command, and for a shell that waits for input."""
    valued, has_host = _PROGRAMS.get(words[0].text.rpartition("/")[2], (frozenset(), False))
    at = 1
    while valued and at < len(words) and words[at].text.startswith("-"):
        at += 1 + (words[at].text[1:] in valued)
    return words[at + has_host :] if valued else ()


_CONTAINERS = frozenset({"docker", "podman", "singularity", "apptainer", "enroot"})


def is_apart(words: tuple[Word, ...]) -> bool:
    """Whether these words start it in a container, whose shell is another."""
    names = (word.text.rpartition("/")[2] for word in words if not word.text.startswith("-"))
    pyxis = any(word.text.startswith(("--container-image", "--container-name")) for word in words)
    return pyxis or any(name in _CONTAINERS for name in names)
