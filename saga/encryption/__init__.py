"""Encryption of sensitive values: each is sealed under the key of the person or saga that it is about.

Reading order: `text` (how a sealed text looks), `port` (what a provider of keys promises), `keys` (keys of subjects),
`key_folder` (a folder that all services share), `sensitive_fields` (which fields of user types are sensitive).
"""
