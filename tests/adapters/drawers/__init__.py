"""A store as a user might write one: documents in drawers, which last as long as the process."""
