"""What a user chooses: options, what each of them does, the log."""
