"""Declarations of a service, read from its functions' signatures and checked while its module is imported.

Reading order: `values` (what can be declared), `annotations` (what signatures say), `handlers` (parameters, and the
rules for all handlers of a service), `resources` (resources, states, documents, and limits of single calls), `changes`
(document changes), `migrations` (migrations of the state, and upcasters).
"""
