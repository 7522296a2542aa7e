"""Stand-in: points matplotlib at the image's fonts."""
