"""Makes the site of the documents: the written pages, and one for each knob, rule, fix, wall and command, made from the
tables and docstrings of the program and not kept in the repository."""
