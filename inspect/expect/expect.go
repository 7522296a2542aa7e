// Package expect holds the expected surface of an image: plain data derived from a profile, so that verification
// doesn't depend on profiles.
package expect

// Expect is everything allowed in the surface of an image of one platform. Anything else is a finding.
type Expect struct {
	// Profile is the profile's name, Platform as os/arch.
	Profile  string
	Platform string

	// Programs are the supervisord programs; Routes the patterns of nginx's answering locations; MCPServers the servers
	// of mcp-hub.json; Tools the servers' tools.
	Programs, Routes, MCPServers, Tools []string
	// Listeners are the allowed listening addresses: "*:8080", "127.0.0.1:5900", "unix:/run/x.sock".
	Listeners []string
	// Upstreams are the addresses that routes may lead to, written like Listeners.
	Upstreams []string
	// Privileged lists paths (or globs) that may have setuid, setgid or capabilities, or be world-writable.
	Privileged []string
	// Switches are the allowed environment variables with an effect on the image; Env are those that the profile sets.
	Switches []string
	Env      map[string]string
	// Laid maps the paths that the profile adds, Removed the base's paths that it removes, with everything below, to
	// the profile's line (file:line:column). The line is empty for paths that slimctl itself adds or removes.
	Laid, Removed map[string]string
	// Base lists the diffIDs of the base's layers, lowest first; empty if the base is unknown.
	Base []string
}
