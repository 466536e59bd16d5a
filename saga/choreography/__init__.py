"""The choreography, made visible: what each service says of itself, and what follows from all of them together.

Reading order: `manifest` (what a service says of itself), `source` and `fields_read` (fields of events that a handler's
code may read), `declared` (from declarations to a manifest), `releases` (a release beside the one before), `folder`
(manifests as committed files), `overview` (contracts and manifests joined), `asyncapi`, `pages`, `docs` (documents).
"""
