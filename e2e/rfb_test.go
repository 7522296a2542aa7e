package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
)

// rfb is a client of RFB 3.8 (RFC 6143) that can do one thing: take a picture.
type rfb struct {
	conn          net.Conn
	r             *bufio.Reader
	Name          string
	Width, Height int
}

// openRFB shakes hands without a password.
func openRFB(conn net.Conn) (*rfb, error) {
	c := &rfb{conn: conn, r: bufio.NewReader(conn)}
	version := make([]byte, 12)
	if _, err := io.ReadFull(c.r, version); err != nil {
		return nil, fmt.Errorf("version: %w", err)
	}
	if !bytes.HasPrefix(version, []byte("RFB 003.")) {
		return nil, fmt.Errorf("version %q", version)
	}
	if _, err := io.WriteString(conn, "RFB 003.008\n"); err != nil {
		return nil, err
	}
	n, err := c.r.ReadByte()
	if err != nil {
		return nil, err
	}
	types := make([]byte, n)
	if _, err := io.ReadFull(c.r, types); err != nil {
		return nil, err
	}
	if !bytes.Contains(types, []byte{1}) {
		return nil, fmt.Errorf("security types %v, none of them None", types)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return nil, err
	}
	var result uint32
	if err := binary.Read(c.r, binary.BigEndian, &result); err != nil || result != 0 {
		return nil, fmt.Errorf("security result %d: %v", result, err)
	}
	if _, err := conn.Write([]byte{1}); err != nil { // shared
		return nil, err
	}
	var init struct {
		Width, Height uint16
		Format        [16]byte
		NameLen       uint32
	}
	if err := binary.Read(c.r, binary.BigEndian, &init); err != nil {
		return nil, err
	}
	if init.Format[0] != 32 || init.NameLen > 1000 {
		return nil, fmt.Errorf("%d bits a pixel, a name of %d bytes", init.Format[0], init.NameLen)
	}
	name := make([]byte, init.NameLen)
	if _, err := io.ReadFull(c.r, name); err != nil {
		return nil, err
	}
	c.Name, c.Width, c.Height = string(name), int(init.Width), int(init.Height)
	// SetEncodings: raw alone.
	_, err = conn.Write([]byte{2, 0, 0, 1, 0, 0, 0, 0})
	return c, err
}

// picture is a whole frame buffer.
type picture struct {
	Hash   uint64
	Colors int // different ones
}

// Picture reads the whole frame buffer.
func (c *rfb) Picture(ctx context.Context) (picture, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.conn.SetDeadline(deadline)
	}
	request := binary.BigEndian.AppendUint16([]byte{3, 0, 0, 0, 0, 0}, uint16(c.Width))
	if _, err := c.conn.Write(binary.BigEndian.AppendUint16(request, uint16(c.Height))); err != nil {
		return picture{}, err
	}
	h, colors := fnv.New64a(), map[[4]byte]bool{}
	for got := 0; got < c.Width*c.Height; {
		kind, err := c.r.ReadByte()
		if err != nil {
			return picture{}, err
		}
		switch kind {
		case 0:
		case 2: // bell
			continue
		case 3: // what was copied on the desktop
			var text struct {
				_ [3]byte
				N uint32
			}
			if err := binary.Read(c.r, binary.BigEndian, &text); err != nil {
				return picture{}, err
			}
			if _, err := c.r.Discard(int(text.N)); err != nil {
				return picture{}, err
			}
			continue
		default:
			return picture{}, fmt.Errorf("message %d", kind)
		}
		var count struct {
			_ byte
			N uint16
		}
		if err := binary.Read(c.r, binary.BigEndian, &count); err != nil {
			return picture{}, err
		}
		for range count.N {
			var rect struct {
				X, Y, W, H uint16
				Encoding   int32
			}
			if err := binary.Read(c.r, binary.BigEndian, &rect); err != nil {
				return picture{}, err
			}
			if rect.Encoding != 0 {
				return picture{}, errors.New("not the raw encoding")
			}
			data := make([]byte, 4*int(rect.W)*int(rect.H))
			if _, err := io.ReadFull(c.r, data); err != nil {
				return picture{}, err
			}
			fmt.Fprint(h, rect.X, rect.Y)
			_, _ = h.Write(data)
			for p := range len(data) / 4 {
				if len(colors) < 10_000 {
					colors[[4]byte(data[4*p:])] = true
				}
			}
			got += int(rect.W) * int(rect.H)
		}
	}
	return picture{h.Sum64(), len(colors)}, nil
}
