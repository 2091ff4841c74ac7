"""The command surface: the unit of work that one worker claims and completes."""
