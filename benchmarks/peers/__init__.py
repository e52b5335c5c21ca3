"""What people use today between hosts, as its own documentation says it is used: torchrun's elastic agent, torchft."""
