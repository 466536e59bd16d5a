"""Read records, route each to its saga, process the messages of one saga in order, and commit offsets."""
