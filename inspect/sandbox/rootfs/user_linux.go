package rootfs

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Account resolves USER[:GROUP] in a root file system like Docker: names from its passwd and group files, which may be
// missing if both are numbers. home is the account's own, or /.
func Account(rootfs, spec string) (account specs.User, home string, err error) {
	root, err := os.OpenFile(rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return account, "", err
	}
	defer root.Close()
	u, err := user.GetExecUser(spec, nil, strings.NewReader(readDatabase(root, "/etc/passwd")), strings.NewReader(readDatabase(root, "/etc/group")))
	if err != nil {
		return account, "", fmt.Errorf("user %q of the image: %w", spec, err)
	}
	for _, id := range append([]int{u.Uid, u.Gid}, u.Sgids...) {
		if id < 0 || id > math.MaxInt32 {
			return account, "", fmt.Errorf("user %q of the image: id %d in its passwd or group file: want 0 to %d", spec, id, math.MaxInt32)
		}
	}
	account.UID, account.GID = uint32(u.Uid), uint32(u.Gid) //nolint:gosec // checked above
	for _, gid := range u.Sgids {
		if gid != u.Gid {
			account.AdditionalGids = append(account.AdditionalGids, uint32(gid)) //nolint:gosec // checked above
		}
	}
	if home = u.Home; !strings.HasPrefix(home, "/") {
		home = "/"
	}
	return account, home, nil
}

// readDatabase returns the content of a file of accounts. The image's file is hostile: missing, huge, not regular or a
// symlink out of the image.
func readDatabase(root *os.File, file string) string {
	f, err := openIn(root, file, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return ""
	}
	return string(text)
}
