"""What is read of the history, at which resolution."""
