// Package version reads which version a program is of from what the Go linker wrote into it. Read is for the program that
// runs, Of for another one's build information.
package version

import (
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// Devel is the version of a program that was built from no known commit.
const Devel = "(devel)"

// Info says which program it is.
type Info struct {
	Version  string `json:"version"`            // a tag, or a pseudo-version with time and commit
	Commit   string `json:"commit,omitempty"`   // empty if the build saw no repository
	Modified bool   `json:"modified,omitempty"` // the commit's files were changed before the build
	Go       string `json:"go"`
	Platform string `json:"platform"` // os/arch
}

// Read returns the running program's version. stamp is what -X gave main.version; it wins if it is not empty.
func Read(stamp string) Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	i := Of(info)
	if stamp != "" {
		i.Version = stamp
	}
	i.Platform = runtime.GOOS + "/" + runtime.GOARCH
	return i
}

// Of returns the version of the program that has this build information.
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

// String is one line: the version, the commit, Go and the platform.
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

// Program returns an identity of the running program, for caches: its version with the size and time of its file. If the file
// can't be found it differs at each start.
func Program() string { return program }

// program is asked for at the start, before another file takes the place of the program's.
var program = func() string {
	file, err := os.Executable()
	if err != nil {
		return rand.Text()
	}
	info, err := os.Stat(file)
	if err != nil {
		return rand.Text()
	}
	return fmt.Sprintf("%s %d %d", Read(""), info.Size(), info.ModTime().UnixNano())
}()
