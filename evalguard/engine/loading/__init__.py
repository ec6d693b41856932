"""A model, loaded where it has to run: in this process, in a worker, behind a server."""
