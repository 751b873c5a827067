"""What `plan` says: the best legal layouts of a recipe by estimate, and why familiar ones are missing."""
