"""The shared memory of one host: what lies where, who writes it, and how it is read from outside."""
