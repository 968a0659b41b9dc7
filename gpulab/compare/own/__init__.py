"""Comparisons of the user's own code: a pair of functions, or a notebook's cell."""
