"""Stand-in for gem-server's cdp routes."""
