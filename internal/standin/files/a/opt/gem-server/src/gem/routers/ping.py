"""Stand-in for gem-server's ping routes."""
