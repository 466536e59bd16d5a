"""Check a choreography before it runs: find out from the manifests of all services which properties hold for every
saga.

`model` turns manifests into an abstract choreography. `rules` proves properties of choreographies in the usual style.
`search` looks for a sequence of events that violates a property. `verdicts` joins the results of both. Nothing here
runs a service.
"""
