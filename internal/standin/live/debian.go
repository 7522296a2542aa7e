package live

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"github.com/slimctl/slimctl/image"
)

// packages lists Debian's packages for what the base runs, without npm, whose 400 packages no test runs.
var packages = []string{
	"autocutsel", "ca-certificates", "chromium", "curl", "dbus-x11", "fonts-liberation", "gettext-base", "jq", "locales",
	"netcat-openbsd", "nginx-light", "nodejs", "openbox", "openssl", "passwd", "procps", "python3",
	"python3-cryptography", "python3-jwt", "rsync", "sudo", "supervisor", "tigervnc-common", "tigervnc-standalone-server",
	"tinyproxy", "tmux", "xauth", "xclip",
}

// excluded lists what dpkg doesn't unpack: documentation, and the files for 3D graphics, which Chromium's software
// renderer doesn't need.
var excluded = []string{
	"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/lintian/*", "/usr/share/locale/*",
	"/usr/share/poppler/*", "/usr/share/fonts/type1/*", "/usr/include/*",
	"/usr/lib/*/libLLVM-*", "/usr/lib/*/libz3.*", "/usr/lib/*/dri/*", "/usr/lib/chromium/libVkLayer_*",
}

// bare lists packages to install without their dependencies, numpy and OpenStack's libraries, which they don't need.
var bare = []string{"novnc", "python3-websockify"}

// hooks run at the end, as root, with the new root file system as $1. noVNC moves to its place in the base,
// /etc/chromium makes room for the base's link, and files with data of this machine are removed.
var hooks = []string{
	`mkdir "$1/tmp/bare" && cd "$1/tmp/bare" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -q download ` + strings.Join(bare, " ") +
		` && for deb in *.deb; do dpkg-deb --extract "$deb" "$1"; done; rm -rf "$1/tmp/bare"`,
	`chroot "$1" localedef -i en_US -f UTF-8 en_US.UTF-8`,
	`cd "$1" && mv usr/share/novnc opt/novnc && cp opt/novnc/vnc.html opt/novnc/index.html`,
	`cd "$1" && rm -rf etc/chromium usr/share/i18n usr/share/icons usr/share/ieee-data usr/share/doc/* usr/share/man/*` +
		` etc/apt/sources.list* etc/apt/apt.conf.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/99mmdebstrap etc/resolv.conf etc/hostname`,
}

// epoch is an arbitrary time for younger files.
const epoch = "1750000000"

// release is the Debian release for which the facts about nginx, supervisor and others were checked.
const release = "bookworm"

// blob describes a root file system's layer.
type blob struct {
	Layer  v1.Descriptor `json:"layer"`
	DiffID v1.Hash       `json:"diffID"`
}

func (b blob) file(dir string) string { return filepath.Join(dir, "layer.tar.gz") }

// debianDir returns the path of the cached root file system. Its name depends on all inputs but the packages' versions.
func debianDir(cacheRoot, arch string) string {
	h := sha256.New()
	for _, part := range [][]string{packages, bare, excluded, hooks, {epoch, release, arch}} {
		fmt.Fprintf(h, "%q\n", part)
	}
	return filepath.Join(cacheRoot, "standin-debian-"+hex.EncodeToString(h.Sum(nil))[:16])
}

// FirstTime is a message for the user if Ready returns false.
const FirstTime = "the live stand-ins' root file system is made now, once; that takes a few minutes"

// Ready reports whether the root file system for an architecture is in the cache. Otherwise Cached and Write take
// minutes.
func Ready(cacheRoot, arch string) bool {
	_, err := readBlob(debianDir(cacheRoot, arch))
	return err == nil
}

func readBlob(dir string) (b blob, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "layer.json"))
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, fmt.Errorf("%s: %w", dir, err)
	}
	return b, nil
}

// debian returns the directory and the layer of the root file system. It makes them if they don't exist; concurrent
// processes wait for the first one.
func debian(ctx context.Context, cacheRoot, arch string) (string, blob, error) {
	dir := debianDir(cacheRoot, arch)
	if b, err := readBlob(dir); err == nil {
		return dir, b, nil
	}
	if err := os.MkdirAll(cacheRoot, 0o755); err != nil {
		return "", blob{}, err
	}
	lock := flock.New(dir + ".lock")
	if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return "", blob{}, fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer lock.Unlock()
	b, err := readBlob(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = image.WriteDir(dir, func(tmp string) (err error) {
			b, err = bootstrap(ctx, tmp, arch)
			return err
		})
	}
	return dir, b, err
}

// bootstrap makes the root file system in dir.
func bootstrap(ctx context.Context, dir, arch string) (b blob, err error) {
	if os.Geteuid() != 0 {
		return b, errors.New("it takes root: mmdebstrap mounts and changes its root; have root write one with `slimctl standin --live --output DIR`, and name it oci:DIR")
	}
	for _, program := range []string{"mmdebstrap", "setpriv", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return b, fmt.Errorf("%w; apt-get install mmdebstrap util-linux", err)
		}
	}
	if arch != runtime.GOARCH {
		if out, err := exec.CommandContext(ctx, "arch-test", arch).CombinedOutput(); err != nil {
			return b, fmt.Errorf("programs of %s don't run here: arch-test: %w: %s; apt-get install arch-test binfmt-support qemu-user-static, "+
				"and without systemd: mount -t binfmt_misc none /proc/sys/fs/binfmt_misc; update-binfmts --enable",
				arch, err, bytes.TrimSpace(out))
		}
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	args, err := mmdebstrap(ctx, work, arch)
	if err != nil {
		return b, err
	}
	// In its own namespaces it leaves no process and no mount when it ends or is killed, as it is when this process ends. For
	// the kernel that is the end of the thread that started it (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "setpriv", append([]string{
		"--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "mmdebstrap",
	}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+work, "SOURCE_DATE_EPOCH="+epoch, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	cmd.Cancel = func() error { return killBelow(cmd.Process) }
	cmd.WaitDelay = 30 * time.Second
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.StdoutPipe()
	if err != nil {
		return b, err
	}
	if err := cmd.Start(); err != nil {
		return b, err
	}
	b, err = pack(out, dir)
	if err != nil {
		_ = killBelow(cmd.Process) // it would wait for a reader
	}
	if ended := cmd.Wait(); ended != nil {
		if ctx.Err() != nil {
			return b, context.Cause(ctx)
		}
		err = errors.Join(fmt.Errorf("mmdebstrap: %w\n%s", ended, tail(words.String(), 15)), err)
	}
	if err != nil {
		return b, err
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return b, err
	}
	return b, os.WriteFile(filepath.Join(dir, "layer.json"), raw, 0o644)
}

// killBelow kills everything that unshare started. The kernel kills a PID namespace with its first process, and unshare
// ends after all of them, so nothing writes to the directory afterwards (pid_namespaces(7)).
func killBelow(unshare *os.Process) error {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", unshare.Pid))
	if err != nil {
		return unshare.Kill()
	}
	var pid int
	if _, err := fmt.Sscan(string(raw), &pid); err != nil {
		return unshare.Kill() // it has not started the process yet
	}
	first, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return first.Kill()
}

// mmdebstrap returns its arguments, and writes the files that they name to work.
func mmdebstrap(ctx context.Context, work, arch string) ([]string, error) {
	sources, err := aptSources("/etc/apt")
	if err != nil {
		return nil, err
	}
	options, err := aptOptions(ctx)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(work, "apt.conf")
	if err := os.WriteFile(config, []byte(options), 0o644); err != nil {
		return nil, err
	}
	args := []string{
		"--mode=root", "--format=tar", "--skip=output/dev", "--architectures=" + arch,
		"--include=" + strings.Join(packages, ","), "--aptopt=" + config, "--dpkgopt=force-unsafe-io",
	}
	if arch == runtime.GOARCH {
		args = append(args, "--variant=minbase")
		for _, hook := range hooks {
			args = append(args, "--customize-hook="+hook)
		}
	} else { // it has only one kind of hooks, and knows neither essential nor required packages
		args = append(args, "--variant=extract", "--include=?essential", "--include=?priority(required)", "--include=apt")
		for _, hook := range append([]string{install()}, hooks...) {
			args = append(args, "--extract-hook="+hook)
		}
	}
	for _, pattern := range excluded {
		args = append(args, "--dpkgopt=path-exclude="+pattern)
	}
	args = append(args, "", "-")
	for i, text := range sources {
		file := filepath.Join(work, fmt.Sprintf("sources%d", i))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
		args = append(args, file)
	}
	return args, nil
}

// install returns the hook that installs the extracted packages of another architecture. This machine's dpkg unpacks
// them, and only their configuration is emulated; an emulated dpkg needs an hour to unpack them.
func install() string {
	dpkg := `dpkg --root="$1" --no-triggers --force-architecture,depends,unsafe-io`
	for _, pattern := range excluded {
		dpkg += ` --path-exclude='` + pattern + `'`
	}
	debs := `"$1"/var/cache/apt/archives/`
	return `set -e; ` + dpkg + ` --unpack ` + debs + `base-passwd_*.deb ` + debs + `base-files_*.deb; ` + // users, directories
		dpkg + ` --unpack ` + debs + `*.deb; chroot "$1" dpkg --configure --pending --force-unsafe-io`
}

// pack compresses a tar stream to the blob in dir.
func pack(tar io.Reader, dir string) (b blob, err error) {
	f, err := os.Create(b.file(dir))
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, raw := sha256.New(), sha256.New()
	zw, err := gzip.NewWriterLevel(io.MultiWriter(f, packed), gzip.BestSpeed)
	if err != nil {
		return b, err
	}
	if _, err := io.CopyBuffer(io.MultiWriter(zw, raw), tar, make([]byte, 1<<20)); err != nil {
		return b, err
	}
	if err := zw.Close(); err != nil {
		return b, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	b.Layer = v1.Descriptor{MediaType: types.OCILayer, Size: size, Digest: hashOf(packed)}
	b.DiffID = hashOf(raw)
	return b, err
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
