"""Who takes part: workers and hosts, their numbers and names, and when one counts as lost. Pure."""
