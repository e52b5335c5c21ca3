"""How a rank of torchrun, or of another launcher like it, becomes a worker."""
