"""Coverage of the toolkit by the tests: lines and branches, in every process, against floors that only rise."""
