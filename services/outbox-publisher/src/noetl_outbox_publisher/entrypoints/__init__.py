"""What makes a publisher work: commits that wake it, and the command line."""
