"""Pages made from the program's own tables, docstrings and types: one module a subject, each with `pages()`."""
