package gate

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// version is the RFB version spoken with viewers and the VNC server.
const version = "RFB 003.008\n"

const (
	none          = 1       // the security type without a password
	shared        = 1       // a ClientInit that lets other viewers stay
	maxServerName = 4 << 10 // bytes of a desktop's name
	serverInit    = 24      // bytes of ServerInit before the name
	maxEncodings  = 1024    // of one SetEncodings; viewers send about 30
	maxFence      = 64      // bytes of a fence's payload

	// extendedMouse is the pseudo-encoding ExtendedMouseButtons. With it the size of a PointerEvent depends on the VNC
	// server's announcements. The server never receives it, so that a PointerEvent has one size.
	extendedMouse = -316
)

// GreetServer performs the handshake with a VNC server without a password, until the server would take a ClientInit (RFC
// 6143, section 7.1). TigerVNC logs a complaint about any client that leaves earlier.
func GreetServer(vnc io.ReadWriter) error {
	var buf [255]byte
	if _, err := io.ReadFull(vnc, buf[:len(version)]); err != nil {
		return err
	}
	if v := buf[:len(version)]; string(v) != version {
		return fmt.Errorf("%w: %q is not a VNC server's greeting", errNotRFB, v)
	}
	if _, err := io.WriteString(vnc, version); err != nil {
		return err
	}
	if _, err := io.ReadFull(vnc, buf[:1]); err != nil {
		return err
	}
	if buf[0] == 0 {
		return fmt.Errorf("the VNC server refuses all viewers: %s", readReason(vnc))
	}
	types := buf[:buf[0]]
	if _, err := io.ReadFull(vnc, types); err != nil {
		return err
	}
	if bytes.IndexByte(types, none) < 0 {
		return fmt.Errorf("the VNC server asks for a password (security types %v)", types)
	}
	if _, err := vnc.Write([]byte{none}); err != nil {
		return err
	}
	if _, err := io.ReadFull(vnc, buf[:4]); err != nil {
		return err
	}
	if !bytes.Equal(buf[:4], make([]byte, 4)) {
		return fmt.Errorf("the VNC server refuses: %s", readReason(vnc))
	}
	return nil
}

// readReason returns the VNC server's reason for a refusal (RFC 6143 7.1.2 and 7.1.3), quoted, up to 200 bytes.
func readReason(r io.Reader) string {
	var length uint32
	if err := binary.Read(r, binary.BigEndian, &length); err != nil {
		return "without a reason"
	}
	text, _ := io.ReadAll(io.LimitReader(r, int64(min(length, 200)))) // part of a reason is better than none
	return strconv.Quote(string(text))
}

// openScreen opens the screen of a VNC server, as one client among several, and returns its ServerInit (RFC 6143, section
// 7.3.2).
func openScreen(vnc io.ReadWriter) ([]byte, error) {
	if err := GreetServer(vnc); err != nil {
		return nil, err
	}
	if _, err := vnc.Write([]byte{shared}); err != nil {
		return nil, err
	}
	init := make([]byte, serverInit)
	if _, err := io.ReadFull(vnc, init); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(init[serverInit-4:])
	if size > maxServerName {
		return nil, errNotRFB
	}
	init = append(init, make([]byte, size)...)
	_, err := io.ReadFull(vnc, init[serverInit:])
	return init, err
}

// renameScreen returns a ServerInit with suffix appended to its name.
func renameScreen(init []byte, suffix string) []byte {
	init = append(bytes.Clone(init), suffix...)
	binary.BigEndian.PutUint32(init[serverInit-4:], uint32(len(init)-serverInit))
	return init
}

// greetViewer performs the handshake with a viewer, in RFB 3.3, 3.7 or 3.8, and sends it init. The VNC server receives
// nothing of it.
func greetViewer(r io.Reader, w io.Writer, init []byte) error {
	if _, err := io.WriteString(w, version); err != nil {
		return err
	}
	theirs := make([]byte, len(version))
	if _, err := io.ReadFull(r, theirs); err != nil {
		return err
	}
	choice := make([]byte, 1)
	switch string(theirs) {
	case "RFB 003.003\n":
		if _, err := w.Write([]byte{0, 0, 0, none}); err != nil {
			return err
		}
	case "RFB 003.007\n", version:
		if _, err := w.Write([]byte{1, none}); err != nil {
			return err
		}
		if _, err := io.ReadFull(r, choice); err != nil {
			return err
		}
		if choice[0] != none {
			return errNotRFB
		}
		if string(theirs) == version {
			if _, err := w.Write(make([]byte, 4)); err != nil {
				return err
			}
		}
	default:
		return errNotRFB
	}
	if _, err := io.ReadFull(r, choice); err != nil { // ClientInit; every viewer shares
		return err
	}
	_, err := w.Write(init)
	return err
}

// kind is the type of a viewer's message (RFC 6143, section 7.5; from 150 the community's rfbproto).
type kind int

const (
	setPixelFormat    kind = 0
	setEncodings      kind = 2
	updateRequest     kind = 3
	keyEvent          kind = 4
	pointerEvent      kind = 5
	cutText           kind = 6
	continuousUpdates kind = 150
	fence             kind = 248
	xvp               kind = 250
	setDesktopSize    kind = 251
	gii               kind = 253
	qemu              kind = 255 // a key with its scan code
	qemuAudio         kind = 256 // has the same type on the wire
)

// heads maps kinds to the number of bytes that determine a message's length.
var heads = map[kind]int{
	setPixelFormat: 1, setEncodings: 4, updateRequest: 1, keyEvent: 1, pointerEvent: 1, cutText: 8,
	continuousUpdates: 1, fence: 9, xvp: 1, setDesktopSize: 7, gii: 4, qemu: 4,
}

// onlyLooks reports whether a message only affects what its viewer sees.
func (k kind) onlyLooks() bool {
	switch k {
	case setPixelFormat, setEncodings, updateRequest, continuousUpdates, fence:
		return true
	}
	return false
}

// isInput reports whether a message is a key, the pointer or the clipboard.
func (k kind) isInput() bool { return k == keyEvent || k == pointerEvent || k == cutText || k == qemu }

// errNotRFB reports a message of unknown length: the start of the next one can't be found.
var errNotRFB = errors.New("not a message of RFB")

// copyMessages copies a viewer's messages to the VNC server until one of them fails. If act is nil, it drops messages
// that do more than look. Otherwise it calls act before each key, pointer and clipboard message, and an error of act
// ends the copying. Messages that could resize, reboot or reconfigure the desktop are always dropped. It buffers at
// most 4 KiB.
func copyMessages(w io.Writer, r *bufio.Reader, act func() error) error {
	buf := make([]byte, 4+4*maxEncodings)
	for {
		kind, size, err := measureMessage(r)
		if err != nil {
			return err
		}
		pass := kind.onlyLooks()
		if act != nil && kind.isInput() {
			if err := act(); err != nil {
				return err
			}
			pass = true
		}
		for size > 0 {
			part := buf[:min(size, int64(len(buf)))]
			if _, err := io.ReadFull(r, part); err != nil {
				return err
			}
			size -= int64(len(part))
			if kind == setEncodings {
				part = dropEncoding(part)
			}
			if pass {
				if _, err := w.Write(part); err != nil {
					return err
				}
			}
		}
	}
}

// dropEncoding removes extendedMouse from a complete SetEncodings.
func dropEncoding(message []byte) []byte {
	kept := message[:4]
	for at := 4; at < len(message); at += 4 {
		if int32(binary.BigEndian.Uint32(message[at:])) != extendedMouse {
			kept = append(kept, message[at:at+4]...)
		}
	}
	binary.BigEndian.PutUint16(kept[2:], uint16((len(kept)-4)/4))
	return kept
}

// measureMessage returns the type and the size in bytes, type included, of the next message in r. It consumes nothing.
func measureMessage(r *bufio.Reader) (k kind, size int64, err error) {
	head, err := r.Peek(1)
	if err != nil {
		return 0, 0, err
	}
	k = kind(head[0])
	n, ok := heads[k]
	if !ok {
		return k, 0, errNotRFB
	}
	if head, err = r.Peek(n); err != nil {
		return k, 0, err
	}
	switch k {
	case setPixelFormat:
		size = 20
	case setEncodings:
		n := binary.BigEndian.Uint16(head[2:])
		if n > maxEncodings {
			return k, 0, errNotRFB
		}
		size = 4 + 4*int64(n)
	case updateRequest, continuousUpdates:
		size = 10
	case keyEvent:
		size = 8
	case pointerEvent:
		size = 6
	case cutText: // a negative length means the extended clipboard
		n := int64(int32(binary.BigEndian.Uint32(head[4:])))
		size = 8 + max(n, -n)
	case fence:
		if head[8] > maxFence {
			return k, 0, errNotRFB
		}
		size = 9 + int64(head[8])
	case xvp:
		size = 4
	case setDesktopSize:
		size = 8 + 16*int64(head[6])
	case gii: // the highest bit of the second byte is the byte order of the length
		size = 4 + int64(binary.LittleEndian.Uint16(head[2:]))
		if head[1]&0x80 != 0 {
			size = 4 + int64(binary.BigEndian.Uint16(head[2:]))
		}
	case qemu:
		switch operation := binary.BigEndian.Uint16(head[2:]); {
		case head[1] == 0:
			size = 12
		case head[1] == 1 && operation < 2: // on, off
			k, size = qemuAudio, 4
		case head[1] == 1 && operation == 2: // its format
			k, size = qemuAudio, 10
		default:
			return k, 0, errNotRFB
		}
	}
	return k, size, nil
}
