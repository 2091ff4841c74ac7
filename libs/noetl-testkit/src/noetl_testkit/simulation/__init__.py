"""A seeded simulation of the whole runtime: real application code, virtual time, faults by number. One seed, one history."""
