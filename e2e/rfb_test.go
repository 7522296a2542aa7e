package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
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

// picture reads a part of the frame buffer.
func (c *rfb) picture(ctx context.Context, part image.Rectangle) (*image.NRGBA, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.conn.SetDeadline(deadline)
		defer func() { _ = c.conn.SetDeadline(time.Time{}) }() // it would end the connection, also when nothing is asked for
	}
	request := []byte{3, 0}
	for _, n := range []int{part.Min.X, part.Min.Y, part.Dx(), part.Dy()} {
		request = binary.BigEndian.AppendUint16(request, uint16(n))
	}
	if _, err := c.conn.Write(request); err != nil {
		return nil, err
	}
	p := image.NewNRGBA(part)
	for got := 0; got < part.Dx()*part.Dy(); {
		kind, err := c.r.ReadByte()
		if err != nil {
			return nil, err
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
				return nil, err
			}
			if _, err := c.r.Discard(int(text.N)); err != nil {
				return nil, err
			}
			continue
		default:
			return nil, fmt.Errorf("message %d", kind)
		}
		var count struct {
			_ byte
			N uint16
		}
		if err := binary.Read(c.r, binary.BigEndian, &count); err != nil {
			return nil, err
		}
		for range count.N {
			var rect struct {
				X, Y, W, H uint16
				Encoding   int32
			}
			if err := binary.Read(c.r, binary.BigEndian, &rect); err != nil {
				return nil, err
			}
			if rect.Encoding != 0 {
				return nil, errors.New("not the raw encoding")
			}
			data := make([]byte, 4*int(rect.W)*int(rect.H))
			if _, err := io.ReadFull(c.r, data); err != nil {
				return nil, err
			}
			for i := range len(data) / 4 { // in Xvnc's own format
				blue, green, red := data[4*i], data[4*i+1], data[4*i+2]
				p.SetNRGBA(int(rect.X)+i%int(rect.W), int(rect.Y)+i/int(rect.W), color.NRGBA{red, green, blue, 255})
			}
			got += int(rect.W) * int(rect.H)
		}
	}
	return p, nil
}

// must is picture of all of the screen, for what has to work.
func (c *rfb) must(t *testing.T) *image.NRGBA {
	t.Helper()
	return c.mustPart(t, image.Rect(0, 0, c.Width, c.Height))
}

// mustPart is picture, for what has to work.
func (c *rfb) mustPart(t *testing.T, part image.Rectangle) *image.NRGBA {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), need.Patience)
	defer cancel()
	p, err := c.picture(ctx, part)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitCorner waits until the lower right corner of the screen has a color.
func (c *rfb) awaitCorner(t *testing.T, why string, want color.NRGBA) {
	t.Helper()
	corner := image.Rect(c.Width-1, c.Height-1, c.Width, c.Height)
	await(t, need.Patience, "the screen after "+why, func() error {
		if got := c.mustPart(t, corner).NRGBAAt(corner.Min.X, corner.Min.Y); got != want {
			return fmt.Errorf("its lower right corner is %v, want %v", got, want)
		}
		return nil
	})
}

// keepScreen writes a picture of the screen beside the evidence if the test has failed.
func (b *box) keepScreen(t *testing.T, screen *rfb) {
	if !t.Failed() {
		return
	}
	var data bytes.Buffer
	if err := png.Encode(&data, screen.must(t)); err != nil {
		t.Error(err)
	}
	b.keep[strings.ReplaceAll(t.Name(), "/", "-")+".png"] = data.Bytes()
}
