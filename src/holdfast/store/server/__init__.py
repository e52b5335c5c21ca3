"""A server of the parameter store: the process, the values it holds, and its supervisor."""
