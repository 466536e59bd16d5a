"""Declarations of a service, read from its functions' signatures and checked while its module is imported.

Reading order: `values` (what there is to declare), `annotations` and `returns` (what signatures say), `handlers`
(parameters, and the rules for all handlers of a service together), `resources` (they, states, documents), `limits`
(of single calls).
"""
