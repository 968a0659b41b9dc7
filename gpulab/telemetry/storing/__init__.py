"""What the history keeps, and how it stays small and sound."""
