"""The training scripts that the benchmarks start in processes of their own."""
