"""Playing episodes to see how good an agent is: which ones, with what, and what came of them."""
