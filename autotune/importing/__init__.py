"""`moe-autotune import`: what people have (script, arguments, log, configuration) as a recipe, and an account of it."""
