"""What is decomposed before conversion, into what and why."""
