package privilege

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// rights finds the files with special rights.
func (r *reader) rights() {
	for e := range r.img.Walk("/") {
		mode, xattr := r.img.Rights(e)
		kinds := kindsOf(e.Type, mode)
		if xattr == "" && kinds == nil {
			continue
		}
		if len(r.report.Files) == maxFiles {
			r.addNote(e.Path, 0, "this and further files with rights of their own are left out")
			return
		}
		f := File{Kinds: kinds, Entry: *e, Place: r.img.Place(e.Path, 0)}
		if xattr != "" {
			text, err := capabilities(xattr)
			if err != nil {
				r.addNote(e.Path, 0, err.Error())
				text = "?"
			}
			f.Capabilities = text
			f.Kinds = append([]string{Capability}, kinds...)
		}
		r.report.Files = append(r.report.Files, f)
	}
}

// kindsOf returns the special properties of a mode, sorted.
func kindsOf(t image.Type, mode int64) []string {
	var out []string
	switch t {
	case image.TypeSymlink:
		return nil
	case image.TypeChar, image.TypeBlock:
		out = append(out, Device)
	case image.TypeFile, image.TypeLink:
		if mode&0o2000 != 0 {
			out = append(out, Setgid)
		}
		if mode&0o4000 != 0 {
			out = append(out, Setuid)
		}
	}
	if mode&0o002 != 0 && (t != image.TypeDir || mode&0o1000 == 0) {
		out = append(out, WorldWritable)
	}
	return out
}

// capNames holds the capabilities by number (linux/capability.h).
var capNames = []string{
	"chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "linux_immutable",
	"net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot",
	"sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease",
	"audit_write", "audit_control", "setfcap", "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read",
	"perfmon", "bpf", "checkpoint_restore",
}

// capabilities formats a struct vfs_cap_data (linux/capability.h) like getcap(8).
func capabilities(raw string) (string, error) {
	b := []byte(raw)
	if len(b) < 4 {
		return "", fmt.Errorf("capabilities of %d bytes", len(b))
	}
	magic := binary.LittleEndian.Uint32(b)
	words, size := 2, 20
	switch magic >> 24 {
	case 1:
		words, size = 1, 12
	case 2:
	case 3:
		size = 24 // includes the user id of root in their namespace
	default:
		return "", fmt.Errorf("capabilities of the unknown version %d", magic>>24)
	}
	if len(b) != size {
		return "", fmt.Errorf("capabilities of version %d in %d bytes, not %d", magic>>24, len(b), size)
	}
	var permitted, inheritable uint64
	for i := range words {
		permitted |= uint64(binary.LittleEndian.Uint32(b[4+8*i:])) << (32 * i)
		inheritable |= uint64(binary.LittleEndian.Uint32(b[8+8*i:])) << (32 * i)
	}
	// The effective set has no bits of its own: it is empty, or the union of the others.
	text := capText(permitted, inheritable, magic&1 != 0)
	if size == 24 {
		if id := binary.LittleEndian.Uint32(b[20:]); id != 0 {
			text += fmt.Sprintf(" [rootid=%d]", id)
		}
	}
	return text, nil
}

// Flags of one capability.
const (
	capEffective = 1 << iota
	capPermitted
	capInheritable
)

// capText formats sets like libcap's cap_to_text(3): the flags of most capabilities first, then those with other flags.
func capText(permitted, inheritable uint64, effective bool) string {
	var names [8][]string // by flags
	var unnamed [8][]string
	for n := range 64 {
		flags := 0
		if permitted>>n&1 != 0 {
			flags |= capPermitted
		}
		if inheritable>>n&1 != 0 {
			flags |= capInheritable
		}
		if effective && flags != 0 {
			flags |= capEffective
		}
		if n < len(capNames) {
			names[flags] = append(names[flags], "cap_"+capNames[n])
		} else {
			unnamed[flags] = append(unnamed[flags], strconv.Itoa(n))
		}
	}
	most := 0
	for flags := range names {
		if len(names[flags]) > len(names[most]) {
			most = flags
		}
	}
	var out []string
	for flags := 7; flags >= 0; flags-- {
		if flags == most || names[flags] == nil {
			continue
		}
		change := ""
		if plus := flags &^ most; plus != 0 {
			op := "+"
			if most == 0 && out == nil {
				op = "="
			}
			change = op + flagText(plus)
		}
		if minus := most &^ flags; minus != 0 {
			change += "-" + flagText(minus)
		}
		out = append(out, strings.Join(names[flags], ",")+change)
	}
	if most != 0 || out == nil {
		out = append([]string{"=" + flagText(most)}, out...)
	}
	for flags := 7; flags > 0; flags-- {
		if unnamed[flags] != nil {
			out = append(out, strings.Join(unnamed[flags], ",")+"+"+flagText(flags))
		}
	}
	return strings.Join(out, " ")
}

func flagText(flags int) string {
	text := ""
	for _, f := range []struct {
		bit  int
		name string
	}{{capEffective, "e"}, {capInheritable, "i"}, {capPermitted, "p"}} {
		if flags&f.bit != 0 {
			text += f.name
		}
	}
	return text
}
