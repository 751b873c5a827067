"""Closed-form estimates of a recipe's memory and step time, without running it, and the plan that is made from them."""
