"""`python -m benchmarks` from the root of the repository."""

import sys

from benchmarks.run import main

sys.exit(main(sys.argv[1:]))
