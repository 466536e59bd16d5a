"""Encryption of sensitive values. Each value is encrypted with the key of its subject: the person or saga that it is
about.

Reading order: `text` (format of encrypted values), `port` (providers of keys), `keys` (keys of subjects), `key_folder`
(a folder of keys that all services share), `sensitive_fields` (which fields of user types are sensitive, and how they
are redacted).
"""
