"""Who may connect: tokens, TLS, the handshake, and the two ends of a connection that has passed it."""
