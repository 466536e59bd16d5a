"""Sealed values: texts in which a sensitive value is encrypted, each under the key of the person or saga it is about.

Reading order: `saga.sealing.text` (how a sealed text looks), `saga.sealing.port` (who gives keys),
`saga.sealing.keys` (keys of subjects), `saga.sealing.folder` (the folder in which they lie), `saga.sealing.made` (the
names of all that ever lay there).
"""
