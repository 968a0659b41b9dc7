"""Whether two results are the same, and where they first differ."""
