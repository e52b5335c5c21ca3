"""Workers that torchrun, or another launcher like it, has started already."""
