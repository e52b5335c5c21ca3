"""The plain loop, `for x, y in loader`: a worker's whole share of a step as one batch."""
