"""Encryption of sensitive values. Each value is encrypted with the key of its subject: the person or the saga that the
value is about.

Reading order: `port` (providers of keys), `keys` (keys of subjects), `key_folder` (a folder of keys that all services
share), `sensitive_fields` (which fields of a service's types are sensitive, how they are redacted, and the format of
encrypted values).
"""
