package rootfs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Account finds who USER[:GROUP] is in a root file system, as Docker does: names from its passwd and group files, which
// can be missing when both are numbers. home is the account's own, or /.
func Account(rootfs, spec string) (user specs.User, home string, err error) {
	root, err := os.OpenFile(rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return user, "", err
	}
	defer root.Close()
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" {
		name = "0"
	}
	home = "/"
	known := ""
	for _, f := range table(root, "/etc/passwd", 7) {
		if f[0] != name && f[2] != name {
			continue
		}
		uid, uerr := id(f[2])
		gid, gerr := id(f[3])
		if uerr != nil || gerr != nil {
			continue
		}
		known, user.UID, user.GID = f[0], uid, gid
		if strings.HasPrefix(f[5], "/") {
			home = f[5]
		}
		break
	}
	if known == "" {
		if user.UID, err = id(name); err != nil {
			return user, "", fmt.Errorf("user %q is not in the image's /etc/passwd", name)
		}
	}
	groups := table(root, "/etc/group", 4)
	if hasGroup {
		i := slices.IndexFunc(groups, func(f []string) bool { return f[0] == group })
		if i >= 0 {
			group = groups[i][2]
		}
		if user.GID, err = id(group); err != nil {
			return user, "", fmt.Errorf("group %q is not in the image's /etc/group", group)
		}
		return user, home, nil
	}
	for _, f := range groups {
		gid, err := id(f[2])
		if known != "" && err == nil && gid != user.GID && slices.Contains(strings.Split(f[3], ","), known) {
			user.AdditionalGids = append(user.AdditionalGids, gid)
		}
	}
	return user, home, nil
}

func id(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err
}

// table reads a file of lines with fields between colons. It belongs to the image: it may be missing, huge, no file at all
// or a symlink out of the image.
func table(root *os.File, file string, fields int) [][]string {
	f, err := openIn(root, file, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil
	}
	var out [][]string
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(f) >= fields {
			out = append(out, f)
		}
	}
	return out
}
