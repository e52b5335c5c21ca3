"""The parameter store between hosts."""
