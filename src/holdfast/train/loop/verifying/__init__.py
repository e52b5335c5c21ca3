"""Looking whether units follow from parameters, samples and seed, and from nothing else."""
