"""A loan: a document starts it, a person decides and is reminded, a budget is reserved meanwhile."""
