"""evalguard in pytest: marker, fixture, options. Nothing heavy is imported until one is used."""

# Under it a comparison travels with the report of its test, from the processes of xdist, too.
PROPERTY = "evalguard"
