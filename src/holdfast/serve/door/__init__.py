"""The front door: the process that listens, and holds every request until it is answered."""
