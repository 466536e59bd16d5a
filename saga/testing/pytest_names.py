"""Names that the pytest plugin and its runs share; it loads nothing, for the plugin is in every run of pytest."""

SIMULATED = "simulated"
"""Choice of `--saga-world` for the world that has no real processes."""
REPORTED = "saga"
"""Name of the user property that carries one line about the runs of a test to the terminal."""
