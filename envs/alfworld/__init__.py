"""ALFWorld's household text games: the same games, words and commands as the original, without its planner."""
