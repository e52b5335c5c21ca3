"""Side-by-side benchmarks: each runs Holdfast and what people use today in turns, in one run, and prints both."""
