"""Other people's tools as ours: a client of the Model Context Protocol, loaded only by a run that has servers."""
