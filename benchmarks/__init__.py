"""Benchmarks: they report, they never assert. `make bench` runs them all."""
