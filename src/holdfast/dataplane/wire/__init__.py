"""What travels between the arenas of hosts."""
