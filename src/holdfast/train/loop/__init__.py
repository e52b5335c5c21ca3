"""The loops of a script, followed: turns and passes, where the script stands, what goes from turn to turn."""
