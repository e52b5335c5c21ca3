"""How gradients become parameters: shared memory, sums, the optimizer on slices, and the bytes between hosts."""
