"""Steps in mode exact: gradients into sums, sums into parameters."""
