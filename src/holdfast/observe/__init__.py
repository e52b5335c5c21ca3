"""What a run looks like from outside: its directory, its processes, its progress. Reads, never decides."""
