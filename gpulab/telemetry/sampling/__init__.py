"""Who samples, when, and how others ask for more."""
