"""What clients and server say to each other: the Open Inference Protocol, version 2. Bytes in, bytes out; pure."""
