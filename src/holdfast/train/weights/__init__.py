"""Weights as files: what a run ends with, what a script saves, and what it begins with."""
