"""ALFWorld: a native engine for its game files, a generator of games, an expert."""
