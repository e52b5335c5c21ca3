"""What a model can be, one module a kind: how it is written into a version, and how it is loaded from there."""
