"""Embedded broker: one SQLite file on a local disk, shared by the processes of one machine. Nothing has to be
installed.

Suggested reading order: `adapter` (addresses and settings), `log` (tables, records and group commits), `groups` (which
member owns which partition, and which members are alive), `membership` (one member from joining to leaving), `broker`
(the ports of services and of tools).
"""
