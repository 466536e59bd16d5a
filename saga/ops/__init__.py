"""Operations for operators: sagas, dead letters, offsets, topics, and checks and repairs of brokers and stores."""
