"""What a recipe should need and give, by closed form and without running it: parameters, memory, FLOPs."""
