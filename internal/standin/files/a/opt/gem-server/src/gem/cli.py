"""Stand-in: the server is /usr/local/bin/gem-server."""
