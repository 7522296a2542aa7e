"""Stand-in for gem-server's auth routes."""
