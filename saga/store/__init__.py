"""Stores of versioned documents: the port with its promises, and an adapter for each kind of store."""
