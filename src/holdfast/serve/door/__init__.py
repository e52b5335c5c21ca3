"""The front door: the process that listens, holds every request until it is answered, and starts replicas."""
