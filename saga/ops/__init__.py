"""Tools for operators: sagas, dead letters, offsets and topics, and checks and repairs of brokers and stores."""
