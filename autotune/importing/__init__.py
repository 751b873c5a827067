"""Makes a recipe from a script, arguments, a log or a configuration, and an account of it, for `moe-autotune
import`."""
