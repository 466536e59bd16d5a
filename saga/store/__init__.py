"""Stores of versioned documents: the port with its promises, and an adapter beside it for each store."""
