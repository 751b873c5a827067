"""What a script's command `show` is given: the word that tests look at."""

from __future__ import annotations

from trainer.command_line.shell import Script


def words(script: Script) -> list[list[str]]:
    return [[word.text for word in command.words[1:]] for command in script.commands if command.words[0].text == "show"]
