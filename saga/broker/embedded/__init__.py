"""Embedded broker: one SQLite file on a local disk, shared by the processes of one machine. Nothing to install.

Reading order: `adapter` (addresses and opening), `tables` (tables and checksums of rows), `log` (records, and each
group commit), `liveness` (which members are alive), `groups` (which member has which partition), `membership` (the life
of one member), `broker` (all of it behind the port). For tools: `reader` and `administration`.
"""
