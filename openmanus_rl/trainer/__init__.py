"""The training loop and its entry point."""
