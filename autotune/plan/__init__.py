"""The output of `plan`: the best legal layouts of a recipe by estimate, and why common ones are missing."""
