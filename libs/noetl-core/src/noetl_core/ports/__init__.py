"""What the core needs from the outside world, as protocols that adapters and in-memory twins implement."""
