"""Rules about the code itself, each shown to refuse what it is there for."""
