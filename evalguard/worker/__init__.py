"""A model in another process: protocol, server and client."""
