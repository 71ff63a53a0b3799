"""Developer commands; nothing here ships."""
