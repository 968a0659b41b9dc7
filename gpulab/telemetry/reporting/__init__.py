"""What a report says, and how it looks."""
