"""What goes in and out of the machine, and over its sockets: events, commands, messages, requests, ports."""
