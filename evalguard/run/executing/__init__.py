"""Work on models: units that they answer, kept once, in this process, in workers, on a cluster."""
