"""The same work for this package and for others: sides are processes of their own, in their own environments."""
