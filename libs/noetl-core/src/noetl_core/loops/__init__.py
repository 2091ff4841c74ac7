"""The loop surface: many runs of a step's tasks in one activation, remembered as counts and intervals."""
