"""What is known of a path: its neighbour's address, whether it is alive, what it loses and
carries."""
