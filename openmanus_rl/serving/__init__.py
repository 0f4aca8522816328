"""A model behind an OpenAI-compatible endpoint."""
