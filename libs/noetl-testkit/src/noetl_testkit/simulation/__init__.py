"""A seeded simulation of the whole runtime: real code, virtual time, faults by number. One seed, one history."""
