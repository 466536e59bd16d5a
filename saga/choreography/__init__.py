"""The choreography, made visible: what each service says of itself, and what follows from all of them together.

Reading order: `manifest` (what a service says of itself), `fields_read` (fields of events that a handler's code may
read), `declared` (from declarations to a manifest), `folder` (manifests as committed files), `releases` (a release
beside the one before).
"""
