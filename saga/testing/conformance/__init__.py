"""What every adapter of a port has to keep: one class of tests for each port, for adapters of your own too."""
