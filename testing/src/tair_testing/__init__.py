"""What the tests of several packages share; nothing here is loaded before it is asked for."""
