"""Views of a running service."""
