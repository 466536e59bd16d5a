"""The simulated world: the real runtime of several services in one thread, on one virtual clock, with injected faults
of every kind.
"""
