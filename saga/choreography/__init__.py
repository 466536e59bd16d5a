"""The choreography as a whole: what each service declares, and what follows from the declarations of all services.

Suggested reading order: `manifest` (what a service declares), `fields_read` (fields of events that a handler's code may
read), `releases` (compares a release with the previous one), `check` (checks a choreography before it runs), `overview`
(joins contracts and manifests), `graph` and its drawings, `docs` (the AsyncAPI document, and the folder of documents),
`pages` (HTML pages).
"""
