"""What a recipe should need and give, by closed form and without running it: memory, time, and the plan they make."""
