"""Pages made from the program's own tables, docstrings and types: one module per subject, each with `pages()`."""
