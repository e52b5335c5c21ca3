"""The simulated cluster with a plain loop, where steps are made of shares."""
