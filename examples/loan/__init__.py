"""A loan. A document starts the saga, and an amount is reserved in a budget. A person may have to decide, and is
reminded each day."""
