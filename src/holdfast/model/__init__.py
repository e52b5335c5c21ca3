"""A model on disk: its weights, how it is built, and what goes in and comes out."""
