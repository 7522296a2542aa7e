package sandbox

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// processesOf reads processes from /proc; it leaves out those that have ended.
func processesOf(pids []int) []Process {
	var out []Process
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue
		}
		p := Process{PID: pid}
		for line := range strings.Lines(string(status)) {
			key, value, _ := strings.Cut(line, ":")
			words := strings.Fields(value)
			if len(words) == 0 {
				continue
			}
			n, _ := strconv.Atoi(words[len(words)-1])
			first, _ := strconv.Atoi(words[0])
			switch key {
			case "Name":
				p.Name = words[0]
			case "State":
				p.State = words[0]
			case "PPid":
				p.Parent = n
			case "NSpid":
				p.Inside = n
			case "Uid":
				p.UID = first
			case "VmRSS":
				p.RSS = int64(first) << 10
			}
		}
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if cmdline = bytes.TrimRight(cmdline, "\x00"); len(cmdline) > 0 {
			p.Args = strings.Split(string(cmdline), "\x00")
		}
		out = append(out, p)
	}
	return out
}

// deadChildrenIn returns this process's children that have ended and wait to be reaped, and are in the process-id
// namespace of the given process.
func deadChildrenIn(pid int) (out []int) {
	namespace := func(pid string) string {
		link, _ := os.Readlink(filepath.Join("/proc", pid, "ns/pid")) // a zombie still has it
		return link
	}
	want := namespace(strconv.Itoa(pid))
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // after the name: state, parent …
		child := filepath.Base(filepath.Dir(file))
		if len(fields) < 2 || fields[0] != "Z" || fields[1] != strconv.Itoa(os.Getpid()) || namespace(child) != want {
			continue
		}
		if n, err := strconv.Atoi(child); err == nil && want != "" {
			out = append(out, n)
		}
	}
	return out
}

// socketsOf returns the listening sockets in the network namespace of the processes, with the process that holds each.
func socketsOf(pids []int) ([]Socket, error) {
	holders := map[string]int{}
	for _, pid := range pids {
		fds, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "fd", "*")) // the pattern is valid
		for _, fd := range fds {
			if link, err := os.Readlink(fd); err == nil && strings.HasPrefix(link, "socket:[") {
				if inode := strings.Trim(link, "socket:[]"); holders[inode] == 0 {
					holders[inode] = pid
				}
			}
		}
	}
	var out []Socket
	var last error
	for _, pid := range pids {
		var found []Socket
		last = nil
		for _, proto := range []string{"tcp", "tcp6", "udp", "udp6"} {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net", proto))
			if err != nil {
				last = err
				break
			}
			found = append(found, parseSockets(proto, string(text), holders)...)
		}
		if last == nil {
			out = found
			break // all of them share one network
		}
	}
	return out, last
}

// parseSockets parses a table of sockets (proc(5), /proc/net/tcp): state 0A is TCP's LISTEN, 07 a UDP socket without a
// peer.
func parseSockets(proto, table string, holders map[string]int) []Socket {
	var out []Socket
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != map[bool]string{true: "0A", false: "07"}[strings.HasPrefix(proto, "tcp")] {
			continue
		}
		if addr, ok := parseTableAddr(f[1]); ok {
			out = append(out, Socket{Network: proto, Address: addr, PID: holders[f[9]]})
		}
	}
	return out
}

// parseTableAddr parses 0100007F:1F90. Each four bytes of the address are in this machine's order.
func parseTableAddr(s string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, uint16(n)), ok
}

// belongsTo reports whether a process with that number on this machine belongs to the container. With an engine on
// another machine, or in a virtual one, the number is another process's.
func belongsTo(pid int, container string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && pid > 1 && container != "" && strings.Contains(string(text), container)
}
