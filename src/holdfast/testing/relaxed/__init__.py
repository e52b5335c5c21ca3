"""The simulated cluster in relaxed modes."""
