"""Who is in the crew, which lanes they drive, and what the run has decided. Pure, but for shell/."""
