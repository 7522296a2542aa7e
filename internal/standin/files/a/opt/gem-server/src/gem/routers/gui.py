"""Stand-in for gem-server's gui routes."""
