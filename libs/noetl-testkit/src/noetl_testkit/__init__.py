"""For tests only: in-memory twins, compliance suites, builders, real backends."""
