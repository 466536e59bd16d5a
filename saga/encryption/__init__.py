"""Sealed values: texts in which a sensitive value is encrypted, each under the key of the person or saga it is about.

Reading order: `saga.encryption.text` (how a sealed text looks), `saga.encryption.port` (who gives keys),
`saga.encryption.keys` (keys of subjects), `saga.encryption.folder` (the folder in which they lie),
`saga.encryption.made` (the names of all that ever lay there). And `saga.encryption.sensitive_fields`: which fields of
user types are sensitive.
"""
