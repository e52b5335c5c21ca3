"""The user's face: join, prepare, epochs, evaluate, fit; and the worker process around the script."""
