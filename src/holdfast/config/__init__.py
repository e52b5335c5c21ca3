"""What a run is told: one tree of frozen values, and where each of them came from."""
