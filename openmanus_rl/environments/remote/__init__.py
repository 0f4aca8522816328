"""Environments over HTTP, in the AgentGym protocol: `openmanus-rl env serve` and the environment `remote:http://...`."""
