"""What starts processes on machines."""
