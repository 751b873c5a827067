"""All studies of a folder beside each other: what was tuned, what it gave, which walls, what it cost."""
