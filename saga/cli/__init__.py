"""The command line, with one file per command. Each command parses its arguments, calls the toolkit and prints the
result."""
