"""A test world of real processes. It runs the same tests as the simulation, with the real clock, on the embedded broker
and SQLite stores or on servers.

Faults that the simulation imitates happen here for real: `kill -9`, frozen processes, locks between processes, bytes on
a disk. A run cannot be repeated byte for byte. Faults that would need a simulated disk, network or clock do not exist
here (`LEFT_OUT`).
"""

from saga.testing.processes.faults import LEFT_OUT
from saga.testing.processes.process_world import ProcessWorld

__all__ = ["LEFT_OUT", "ProcessWorld"]
