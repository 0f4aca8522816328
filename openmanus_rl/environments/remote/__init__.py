"""Environments over HTTP, in the AgentGym protocol: `openmanus-rl env serve` and the environment `remote:http://...`."""

# Of what our servers say beyond AgentGym's routes; a client refuses to talk to another one.
PROTOCOL = 1
