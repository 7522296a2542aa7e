// Package version reads a program's version from its build information. Read is for the running program, Of for another
// one.
package version

import (
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// Devel is the version of a program without a known commit.
const Devel = "(devel)"

// Info describes a program's build.
type Info struct {
	Version  string `json:"version"`            // a tag, or a pseudo-version with time and commit
	Commit   string `json:"commit,omitempty"`   // empty if the build had no repository
	Modified bool   `json:"modified,omitempty"` // the commit's files were changed before the build
	Go       string `json:"go"`
	Platform string `json:"platform"` // os/arch
}

// Read returns the running program's version.
func Read() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	i := Of(info)
	i.Platform = runtime.GOOS + "/" + runtime.GOARCH
	return i
}

// Of returns the version in a program's build information.
func Of(info *debug.BuildInfo) Info {
	i := Info{Version: info.Main.Version, Go: info.GoVersion}
	if i.Version == "" {
		i.Version = Devel
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	i.Commit, i.Modified = set["vcs.revision"], set["vcs.modified"] == "true"
	i.Platform = set["GOOS"] + "/" + set["GOARCH"]
	return i
}

// String returns one line: the version, the commit, Go's version and the platform.
func (i Info) String() string {
	commit := "commit unknown"
	if i.Commit != "" {
		commit = "commit " + i.Commit[:min(12, len(i.Commit))]
	}
	if i.Modified {
		commit += ", modified"
	}
	return fmt.Sprintf("%s (%s, %s, %s)", i.Version, commit, i.Go, i.Platform)
}

// Program returns an identifier of the running program for caches: its version with the size and time of its file. If
// the file can't be found, each start has another identifier.
func Program() string { return program }

// program is computed at the start, before another file can replace the program's.
var program = func() string {
	file, err := os.Executable()
	if err != nil {
		return rand.Text()
	}
	info, err := os.Stat(file)
	if err != nil {
		return rand.Text()
	}
	return fmt.Sprintf("%s %d %d", Read(), info.Size(), info.ModTime().UnixNano())
}()
