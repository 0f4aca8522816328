"""Typed configuration: schema, layers, recipes, estimates. Torch-free."""
