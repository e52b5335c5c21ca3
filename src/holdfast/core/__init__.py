"""The mathematics of a run. Pure: no clock, socket, environment, randomness of its own, or torch."""
