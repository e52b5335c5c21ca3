"""The thin I/O around the machine: the coordinator process, its control socket and that socket's client."""
