//go:build !embedserver

package overlays

// embeddedServer returns nil: the binary is compiled on the spot.
func embeddedServer(string) []byte { return nil }
