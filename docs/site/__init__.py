"""Makes the site of the documents: the pages beside this folder, and one for each knob, rule, fix, wall and command.

Those are made from the tables and docstrings that the program itself uses; none is kept in the repository.
"""
