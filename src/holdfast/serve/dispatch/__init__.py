"""What decides in a server: which request goes to which replica, in which batch, and which is refused. Pure."""
