"""Text environments: the contract, the registry, and the environments themselves. Torch-free."""
