// Package expect is what the surface of an image is checked against: plain data that a profile is turned into, so that whoever
// verifies needs to know nothing of profiles.
package expect

// Expect is everything that may be in the surface of an image of one platform. What is not named here is a finding.
type Expect struct {
	// Profile is the profile's name, Platform as os/arch.
	Profile  string
	Platform string

	// Programs are the supervisord programs; Routes the patterns of nginx's answering locations; MCPServers the servers of
	// mcp-hub.json; Tools what they offer.
	Programs, Routes, MCPServers, Tools []string
	// Listeners are the addresses that may be listened on, "*:8080", "127.0.0.1:5900", "unix:/run/x.sock".
	Listeners []string
	// Privileged are the paths (or globs) that may have setuid, setgid, capabilities, or be writable by everybody.
	Privileged []string
	// Switches are the environment variables that may change what the image does; Env are those that the profile sets.
	Switches []string
	Env      map[string]string
	// Laid are the paths that the profile lays, Removed those of the base that it takes away, with everything below. Each has the
	// profile's line, as file:line:column; it is empty for what slimctl does of itself.
	Laid, Removed map[string]string
	// Base are the diffIDs of the base's layers, lowest first; empty where the base isn't known.
	Base []string
}
