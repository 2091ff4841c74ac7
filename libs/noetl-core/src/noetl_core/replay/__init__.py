"""The state of an execution at any point of its history, from the log alone, and what changed between two points."""
