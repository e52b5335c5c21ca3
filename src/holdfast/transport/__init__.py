"""How bytes, descriptors and memory get from one process to another. No meaning here: bytes in, bytes out."""
