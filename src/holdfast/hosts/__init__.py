"""One machine's share of a run: its agent, forkserver and workers, and its connections to the other hosts."""
