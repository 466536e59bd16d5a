"""Examples from other domains than the order saga in `services/`: a loan and a trip."""
