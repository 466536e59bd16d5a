"""A loan. A document starts the saga, a budget is reserved, and a person decides, who is reminded each day."""
