"""The agent: what it is shown, how its answers are read, and the loop between engine and environment."""
