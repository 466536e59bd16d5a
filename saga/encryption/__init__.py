"""Encryption of sensitive values. Each value is encrypted with the key of its subject: the person or saga that it is
about.

Reading order: `port` (providers of keys), `keys` (keys of subjects), `key_folder` (a folder of keys that all services
share), `sensitive_fields` (which fields of user types are sensitive, how they are redacted, and the format of encrypted
values).
"""
