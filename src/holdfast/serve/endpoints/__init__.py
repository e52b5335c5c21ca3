"""Where clients ask: HTTP and gRPC, the page for people, the control plane, and who may ask."""
