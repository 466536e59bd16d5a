"""Settings of a process, and the adapters, brokers and stores that they choose."""
