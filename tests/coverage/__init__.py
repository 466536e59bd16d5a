"""How much of the toolkit the tests run: lines and branches, in every process, against floors that only rise."""
