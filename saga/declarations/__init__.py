"""Declarations of a service, read from its functions' signatures and checked while its module is imported.

Suggested reading order: `values` (the declared values), `annotations` (reads signatures), `handlers` (parameters of
handlers, and the rules for all handlers of a service together), `resources` (resources, states, documents, and limits
of single calls), `changes` (document changes), `migrations` (migrations of the state, and upcasters).
"""
