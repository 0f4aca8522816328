"""What our HTTP servers have in common: reading requests within limits, and a process that ends as it should."""
