"""Engines that run GE graphs, behind one protocol: the embedded CPU engine now, the CANN runner later."""
