"""The same work on CPU and GPU, measured honestly."""
