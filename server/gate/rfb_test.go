package gate

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestCopyMessages(t *testing.T) {
	format := append([]byte{0, 0, 0, 0}, make([]byte, 16)...)
	update := []byte(question)
	fenced := append([]byte{248, 0, 0, 0, 0, 0, 0, 1, 3}, "abc"...)
	continuous := []byte{150, 1, 0, 0, 0, 0, 1, 64, 0, 200}
	encodings := func(list ...int32) []byte {
		b := []byte{2, 0, byte(len(list) >> 8), byte(len(list))}
		for _, e := range list {
			b = binary.BigEndian.AppendUint32(b, uint32(e))
		}
		return b
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, c := range map[string]struct {
		sent, want []byte
		err        error // besides io.EOF
	}{
		"looking":               {join(format, encodings(0, -313, -312), update, fenced, continuous), join(format, encodings(0, -313, -312), update, fenced, continuous), nil},
		"no encodings":          {encodings(), encodings(), nil},
		"extended mouse":        {encodings(extendedMouse, 0, extendedMouse, 7, extendedMouse), encodings(0, 7), nil},
		"all encodings":         {encodings(make([]int32, maxEncodings)...), encodings(make([]int32, maxEncodings)...), nil},
		"too many encodings":    {join(update, encodings(make([]int32, maxEncodings+1)...)), update, errNotRFB},
		"a fence of 64":         {join([]byte{248, 0, 0, 0, 0, 0, 0, 0, 64}, make([]byte, 64)), join([]byte{248, 0, 0, 0, 0, 0, 0, 0, 64}, make([]byte, 64)), nil},
		"a fence of 65":         {join([]byte{248, 0, 0, 0, 0, 0, 0, 0, 65}, make([]byte, 65)), nil, errNotRFB},
		"between them":          {join(update, []byte{4, 1, 0, 0, 0, 0, 0, 'a'}, update), join(update, update), nil},
		"a large clipboard":     {join([]byte{6, 0, 0, 0, 0, 1, 0, 0}, bytes.Repeat(movePointer, 0x10000/6+1)[:0x10000], update), update, nil},
		"a clipboard of 2 GB":   {join([]byte{6, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff}, movePointer), nil, io.ErrUnexpectedEOF},
		"one of -2 GB":          {join([]byte{6, 0, 0, 0, 0x80, 0, 0, 0}, update), nil, io.ErrUnexpectedEOF},
		"unknown":               {join(update, []byte{7}, update), update, errNotRFB},
		"unknown of QEMU":       {join(update, []byte{255, 2, 0, 0}, update), update, errNotRFB},
		"unknown sound of QEMU": {join(update, []byte{255, 1, 0, 3}, update), update, errNotRFB},
	} {
		for way, from := range map[string]io.Reader{"whole": bytes.NewReader(c.sent), "in bytes": iotest.OneByteReader(bytes.NewReader(c.sent))} {
			var got bytes.Buffer
			err := copyMessages(&got, bufio.NewReaderSize(from, clientBuffer), nil)
			if !bytes.Equal(got.Bytes(), c.want) || !errors.Is(err, c.err) && !(c.err == nil && errors.Is(err, io.EOF)) {
				t.Errorf("%s, %s: %d bytes, want %d; %v", name, way, got.Len(), len(c.want), err)
			}
		}
	}
}

// FuzzCopyMessages: whatever a viewer sends, in whatever parts, the VNC server hears only whole messages that look.
func FuzzCopyMessages(f *testing.F) {
	var all []byte
	for _, message := range acting {
		f.Add(message)
		f.Add(append(append([]byte(question), message...), question...))
		all = append(all, message...)
	}
	f.Add(all)
	f.Add([]byte{2, 0, 0, 2, 255, 255, 254, 196, 0, 0, 0, 0})
	f.Add([]byte{248, 0, 0, 0, 0, 0, 0, 0, 64})
	f.Fuzz(func(t *testing.T, sent []byte) {
		var whole, parts, acts bytes.Buffer
		err := copyMessages(&whole, bufio.NewReaderSize(bytes.NewReader(sent), clientBuffer), nil)
		if err == nil {
			t.Fatal("no error at the end")
		}
		_ = copyMessages(&parts, bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(sent)), clientBuffer), nil)
		if !bytes.Equal(whole.Bytes(), parts.Bytes()) {
			t.Fatalf("%x whole, %x in parts", whole.Bytes(), parts.Bytes())
		}
		checkLooks(t, whole.Bytes())
		n := 0
		_ = copyMessages(&acts, bufio.NewReaderSize(bytes.NewReader(sent), clientBuffer), func() error { n++; return nil })
		if n == 0 && !bytes.Equal(acts.Bytes(), whole.Bytes()) || acts.Len() < whole.Len() {
			t.Fatalf("with input %x, without %x", acts.Bytes(), whole.Bytes())
		}
	})
}

// checkLooks reads messages as TigerVNC does, by another way than the gate's.
func checkLooks(t *testing.T, got []byte) {
	t.Helper()
	for len(got) > 0 {
		size := map[byte]int{0: 20, 3: 10, 150: 10}[got[0]]
		switch {
		case got[0] == 2:
			if len(got) < 4 {
				t.Fatalf("a part of SetEncodings: %x", got)
			}
			size = 4 + 4*(int(got[2])<<8|int(got[3]))
			for at := 4; at < size; at += 4 {
				if bytes.Equal(got[at:at+4], []byte{255, 255, 254, 196}) {
					t.Fatal("the VNC server hears of ExtendedMouseButtons")
				}
			}
		case got[0] == 248 && len(got) >= 9:
			size = 9 + int(got[8])
		case size == 0:
			t.Fatalf("message of type %d", got[0])
		}
		if len(got) < size {
			t.Fatalf("%d bytes of a message of %d", len(got), size)
		}
		got = got[size:]
	}
}

// FuzzOpenScreen: whatever a VNC server says, it is greeted or refused.
func FuzzOpenScreen(f *testing.F) {
	f.Add([]byte(version + "\x01\x01\x00\x00\x00\x00" + string(make([]byte, serverInit-1)) + "\x02hi"))
	f.Add([]byte(version + "\x00\x00\x00\x00\x02no"))
	f.Fuzz(func(t *testing.T, said []byte) {
		init, err := openScreen(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(said), io.Discard})
		if err != nil {
			return
		}
		named := renameScreen(init, " x")
		if size := int(binary.BigEndian.Uint32(named[serverInit-4:])); len(named) != serverInit+size || !bytes.HasSuffix(named, []byte(" x")) {
			t.Fatalf("%x", named)
		}
	})
}
