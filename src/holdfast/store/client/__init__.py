"""A client of the parameter store: the verbs, and the requests they are made of."""
