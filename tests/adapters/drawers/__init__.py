"""A store as somebody else might write one: documents in drawers, which last as long as the process."""
