"""Check a choreography before it runs: what the manifests of all services together promise, and what they do not.

`model` turns manifests into an abstract choreography, `rules` prove the usual style from it, `search` looks for a
sequence of events that breaks a property, and `verdicts` joins both. Nothing here runs a service.
"""
