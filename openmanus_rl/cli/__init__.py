"""The `openmanus-rl` command."""
