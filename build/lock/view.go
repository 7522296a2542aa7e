package lock

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/slimctl/slimctl/image"
	loader "github.com/slimctl/slimctl/image/elf"
	"github.com/slimctl/slimctl/image/tree"
)

// View answers the questions that resolving asks about a base's merged tree, and records the answers in a footprint for
// a lock. After an error, all answers are empty. A View is not safe for concurrent use.
type View struct {
	ctx   context.Context //nolint:containedctx // of one call of Resolve
	files *tree.Image     // nil if the lock answers
	foot  *Footprint
	known map[string]image.Entry // by path; one without a path doesn't exist
	elfs  map[tree.Digest]*loader.File
	spent int // by Resolve
	// Err is the first error. It is set when the context ends, too.
	Err error
}

// errNotInLock is the error for a question that the lock has no answer to, because it was written for another profile.
var errNotInLock = errors.New("not in the lock; run `slimctl lock` again")

// NewView returns a view of files, or of the footprint foot if files is nil.
func NewView(ctx context.Context, files *tree.Image, foot *Footprint) *View {
	v := &View{ctx: ctx, files: files, foot: foot, known: map[string]image.Entry{}}
	for _, e := range foot.Entries {
		v.known[e.Path] = e
	}
	for _, p := range foot.Absent {
		v.known[p] = image.Entry{}
	}
	return v
}

// canAsk reports whether the tree can be asked. It sets Err if only a lock is there, which should have had the answer.
func (v *View) canAsk(format string, args ...any) bool {
	if v.Err == nil {
		v.Err = context.Cause(v.ctx)
	}
	if v.Err == nil && v.files == nil {
		v.Err = fmt.Errorf(format+": %w", append(args, errNotInLock)...)
	}
	return v.Err == nil
}

// Lookup returns the entry at a path, without following symlinks.
func (v *View) Lookup(p string) (image.Entry, bool) {
	e, ok := v.known[p]
	if !ok && v.canAsk("%s", p) {
		if found, there := v.files.Lookup(p); there {
			e = found.Entry
			v.foot.Entries = append(v.foot.Entries, e)
		} else {
			v.foot.Absent = append(v.foot.Absent, p)
		}
		v.known[p] = e
	}
	return e, e.Path != ""
}

// maxSpent limits the time of Resolve: the sum of the paths' bytes times their directories. l0 of stand-in B needs 31,000
// besides its payload.
const maxSpent = 100_000_000

// Resolve returns p with the symlinks among its parents followed.
func (v *View) Resolve(p string) (string, error) {
	if v.files == nil {
		if to, ok := v.foot.Links[p]; ok {
			return to, nil
		}
		return p, nil
	}
	if !v.canAsk("%s", p) {
		return "", v.Err
	}
	to, err := v.files.Resolve(p)
	if v.spent += (len(p) + len(to)) * (strings.Count(p, "/") + strings.Count(to, "/")); v.spent > maxSpent {
		v.Err = fmt.Errorf("%.100s… and other paths of the base lead through too many directories and symlinks; choose a base without them", p)
	}
	if err == nil && to != p {
		v.foot.Links[p] = to
	}
	return to, err
}

// Glob lists the paths that a pattern matches, sorted.
func (v *View) Glob(pattern string) []string {
	paths, ok := v.foot.Globs[pattern]
	if !ok && v.canAsk("glob %s", pattern) {
		if paths, v.Err = v.files.Glob(pattern); v.Err == nil {
			v.foot.Globs[pattern] = paths
		}
	}
	return paths
}

// Below lists the paths below a directory, relative to it, parents first; directories end in "/".
func (v *View) Below(dir string) []string {
	out, ok := v.foot.Below[dir]
	if ok || !v.canAsk("what lies below %s", dir) {
		return out
	}
	for e := range v.files.Walk(dir) {
		if e.Path == dir {
			continue
		}
		rel := strings.TrimPrefix(e.Path, strings.TrimSuffix(dir, "/")+"/")
		if e.IsDir() {
			rel += "/"
		}
		out = append(out, rel)
	}
	v.foot.Below[dir] = out
	return out
}

// Privileged lists the files with setuid, setgid or file capabilities, sorted.
func (v *View) Privileged() []string {
	if v.files == nil {
		return v.foot.Privileged
	}
	var out []string
	for e := range v.files.Walk("/") {
		mode, capability := v.files.Rights(e)
		if (e.Type == image.TypeFile || e.Type == image.TypeLink) && (mode&0o6000 != 0 || capability != "") {
			out = append(out, e.Path)
		}
	}
	sort.Strings(out)
	v.foot.Privileged = out
	return out
}

// Machine returns the machine of an ELF program, or zero for any other file.
func (v *View) Machine(p string) elf.Machine {
	if v.files == nil {
		return elf.Machine(v.foot.Machines[p])
	}
	e, ok := v.files.Lookup(p)
	if ok && v.elfs == nil && v.Err == nil {
		v.elfs, v.Err = v.files.ELF()
	}
	f := v.elfs[e.Digest]
	if f == nil {
		return 0
	}
	v.foot.Machines[p] = uint16(f.Machine)
	return f.Machine
}

// readFile returns the content of a file, or nil if it doesn't exist or is larger than tree.MaxRead.
func (v *View) readFile(p string) []byte {
	e, ok := v.files.Stat(p)
	if !ok || e.Size == 0 || e.Size > tree.MaxRead || v.Err != nil {
		return nil
	}
	var contents map[string][]byte
	contents, v.Err = v.files.ReadFiles(v.ctx, e.Path)
	return contents[e.Path]
}

// Interpreter returns the words of a script's #! line, or nil for any other file.
func (v *View) Interpreter(p string) []string {
	if v.files == nil {
		return v.foot.Interpreters[p]
	}
	words := image.Interpreter(v.readFile(p))
	if len(words) > 0 {
		v.foot.Interpreters[p] = words
	}
	return words
}

// Servers lists the names of the MCP servers in a JSON file of the base's hub, sorted. It returns none if the file
// isn't such JSON.
func (v *View) Servers(file string) []string {
	if v.files == nil {
		return v.foot.Servers
	}
	var hub struct {
		MCPServers map[string]json.RawMessage `json:"mcpServers"`
	}
	_ = json.Unmarshal(v.readFile(file), &hub) // a template need not be JSON; it goes in any case
	names := slices.Sorted(maps.Keys(hub.MCPServers))
	v.foot.Servers = append(v.foot.Servers, names...)
	return names
}

// Sort sorts the footprint's lists by path, so that two runs write the same lock.
func (f *Footprint) Sort() {
	sort.Slice(f.Entries, func(i, j int) bool { return f.Entries[i].Path < f.Entries[j].Path })
	sort.Strings(f.Absent)
}
