"""The stage surface: loops whose rows run in frames, which workers lease, run and commit as a whole."""
