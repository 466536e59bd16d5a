"""Baskets of a shop and its till: a choreography of which both services have releases with other versions of its
events."""
