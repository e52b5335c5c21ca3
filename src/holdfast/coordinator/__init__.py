"""Who is in the crew, which lanes they drive, and what the run has decided.

`events`, `commands`, `messages`, `policy`, `story` and `machine` are pure; `server` and `client`
are the thin I/O around them.
"""
