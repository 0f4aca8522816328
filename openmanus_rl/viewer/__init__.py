"""A run to look at: the same page served while it goes on (`view`) and as one file that opens anywhere (`report`)."""
