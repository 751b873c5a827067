"""Scripts for a login shell, which first reads /etc/profile and the user's own profile, where `module` and `conda` are
defined."""

from __future__ import annotations

import re

FIRST_LINE = "#!/usr/bin/env bash"  # first line of a script that needs no login shell
_LOGIN = re.compile(r"#!\s*\S*(/env\s+-S\s+\S*|/)bash(\s+-\w+)*\s+(-[a-km-z]*l\w*|--login)(\s|$)")


def is_login(line: str) -> bool:
    """Returns whether a script with this first line runs in a login shell: `#!/bin/bash -l`."""
    return _LOGIN.match(line) is not None


def login_line(text: str) -> tuple[str, ...]:
    """Returns the first line of a login shell's script as a tuple; () for any other script."""
    first = text.partition("\n")[0].strip()
    return (first,) if is_login(first) else ()
