//go:build !embedserver

package overlays

// embeddedServer returns nil, so the binary is compiled.
func embeddedServer(string) []byte { return nil }
