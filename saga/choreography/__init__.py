"""The choreography as a whole: the declarations of each service, and the conclusions from all of them together.

Suggested reading order: `manifest` (what a service declares), `fields_read` (fields of events that a handler's code may
read), `releases` (a release compared with the previous one), `overview` (contracts and manifests joined), `docs` (the
AsyncAPI document, and the folder of documents), `pages` (HTML pages).
"""
