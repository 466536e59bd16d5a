"""Read the settings of a process, and create the adapters, brokers and stores that they select."""
