"""Scaffolds: what is written passes all checks, and nothing is overwritten."""
