"""`make bench`: throughput and latency of a whole stack of its own, as figures and ratios of one run."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository instead of this directory, whose modules are not for everybody to import.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.suite import main

    sys.exit(main(sys.argv[1:]))
