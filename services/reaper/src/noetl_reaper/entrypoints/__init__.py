"""What sets the reaper to work: time."""
