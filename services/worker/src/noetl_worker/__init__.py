"""Claims commands, runs tools, persists results before telling anyone."""
