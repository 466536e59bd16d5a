"""What operators read and do: sagas, dead letters, offsets, topics, checks and repairs of brokers and stores."""
