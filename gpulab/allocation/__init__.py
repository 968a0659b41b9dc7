"""Who gets which GPU."""
