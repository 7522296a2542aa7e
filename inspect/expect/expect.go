// Package expect is what an image is held against: plain data that a profile is turned into, so that whoever verifies needs
// to know nothing of profiles.
package expect

// Expect is everything that may be in an image of one platform. What is not named here is a finding.
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
	// Switches are the environment variables that may change what the image does.
	Switches []string
	// Closed are directories in which every path is named.
	Closed []Closed
	// Files are what the profile lays: each must be there exactly so.
	Files []File
	// Removed must not be there.
	Removed []Removed
	Config  Config
	// Annotations are those that the manifest and the index may have besides what describes an image to people
	// (org.opencontainers.image.): what the build was told.
	Annotations, IndexAnnotations map[string]string
	// Base is what the image must be made from.
	Base Base
}

// Closed names every path that may be left of those that Glob matches.
type Closed struct {
	Glob  string
	Allow []string
	Why   string
	// Source is the profile's line, as file:line:column.
	Source string
}

// File is one path that is laid on the base.
type File struct {
	Path string
	// Type is the words of image.Type: "file", "dir", "symlink".
	Type     string
	Mode     int64
	UID, GID int
	Size     int64
	// SHA256 is the content's digest as "sha256:…"; empty for what has no content.
	SHA256 string
	// Machine is that of an ELF program, as debug/elf names it: "EM_X86_64"; empty for anything else, and when it isn't known.
	Machine string
	Link    string
	// Overlay is the overlay's name: "payload", "browser-shell", "nginx".
	Overlay string
	// Source is the profile's line; empty for what slimctl lays of itself.
	Source string
}

// Removed is a path or glob that must match nothing but laid files, nor may anything else be below what it matches.
type Removed struct {
	Glob string
	// Except are globs of what Glob does not mean.
	Except []string
	Why    string
	Source string
}

// Config is what the image config must say. A nil field isn't looked at.
type Config struct {
	Entrypoint, Cmd []string
	User            string
	WorkingDir      string
	// Env are the variables that the profile sets; Unset those that must not be there.
	Env          map[string]string
	Unset        []string
	ExposedPorts []string
	Healthcheck  []string
	Labels       map[string]string
}

// Descriptor is what a manifest says of a layer (OCI image specification, descriptor.md).
type Descriptor struct {
	MediaType, Digest string
	Size              int64
	Annotations       map[string]string
}

// Base is what is known of the base. Zero values aren't looked at.
type Base struct {
	// Name and Digest are what the annotations must say.
	Name, Digest string
	// Layers are the diffIDs of the base's layers, which must be the image's lowest.
	Layers []string
	// Manifest is what a build's manifest says of each of the base's layers, lowest first.
	Manifest []Descriptor
	// Above are the layers that a build puts on the base's, lowest first, by their overlay; the one that removes has no name.
	// nil isn't looked at.
	Above []string
	// Config is the image config that a build on the base writes, as JSON (OCI image specification, config.md). Times and
	// diffIDs in it mean nothing.
	Config []byte
	// Dirs are directories of the base as it has them, by path: those in which layers above it put or remove something. They
	// count where the base's layers were not read.
	Dirs map[string]File
}
