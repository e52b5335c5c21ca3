"""How lanes keep step: the modes and their rules. Pure."""
