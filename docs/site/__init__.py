"""Makes the site of the documents: their own pages, and one for each knob, rule, fix, wall and command.

The latter are made from the tables and docstrings of the program; none is kept in the repository.
"""
