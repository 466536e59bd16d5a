"""Contracts between services: Avro schemas in `contracts/`, the classes generated from them, and encoded messages.

Reading order:
- `schema` and `contract`: the values, which are types of schemas, versions and contracts;
- `schema_parser` and `loading`: read a contracts folder and report all problems in it;
- `library`: finds the folder, looks contracts up, and binds event classes to their versions;
- `conversion`, `json_form` and `codec`: events to raw values, to JSON and to bytes, and back;
- `upcasters`: read older versions that schema resolution cannot bridge;
- `foreign_values`: read what external senders write, in a registry's wire format or as JSON;
- `sensitive_fields` and `encryption`: redact and encrypt the fields that a contract marks as sensitive;
- `codegen`: generates event classes from schemas;
- `compatibility` and `checks`: what `saga contracts check` and `saga contracts lint` report.
"""
