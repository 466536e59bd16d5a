"""Rules of reaction as pure functions over frozen values: one file per policy."""
