"""The process that holds a model and computes batches."""
