"""The simulated world: the shipped runtime of several services in one thread, on one virtual clock, and every fault."""
