package upstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// maxLine bounds a line of a server in bytes, as go-sdk does: results carry images.
	maxLine = 16 << 20
	// maxNoise is how much of a line that is no message goes to the log.
	maxNoise = 1 << 10
)

// scanner finds the messages among the lines of a program's stdout. The rest
// goes to the log: one line of it would end go-sdk's session.
type scanner struct {
	in  *bufio.Reader
	log io.Writer
}

// next gives the messages of the next line that has any: one, or those of a
// batch (MCP 2025-03-26).
func (s *scanner) next() ([]jsonrpc.Message, error) {
	for {
		text, size, err := s.line()
		if err != nil {
			return nil, err
		}
		if size > maxLine {
			s.noise(text, size)
			continue
		}
		if msgs := decode(text); msgs != nil {
			return msgs, nil
		}
		if len(bytes.TrimSpace(text)) > 0 {
			s.noise(text, size)
		}
	}
}

// line reads to the next newline. Of a line longer than maxLine it gives the
// beginning only. The last line needs no newline.
func (s *scanner) line() (text []byte, size int, err error) {
	for {
		part, err := s.in.ReadSlice('\n')
		size += len(part)
		if size <= maxLine {
			text = append(text, part...)
		} else if len(text) > maxNoise {
			text = bytes.Clone(text[:maxNoise]) // lets go of the rest
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && size == 0:
			return nil, 0, err
		default: // an error comes again
			return text, size, nil
		}
	}
}

func (s *scanner) noise(text []byte, size int) {
	text = bytes.TrimRight(text, "\r\n")
	if len(text) <= maxNoise && size <= maxLine {
		fmt.Fprintf(s.log, "stdout: %s\n", text)
		return
	}
	text = text[:min(len(text), maxNoise)]
	fmt.Fprintf(s.log, "stdout: %s... (a line of %d bytes)\n", text, size)
}

// decode gives nil for what is no message.
func decode(text []byte) []jsonrpc.Message {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' && text[0] != '[' || !utf8.Valid(text) {
		return nil
	}
	var batch []json.RawMessage
	if text[0] == '{' {
		batch = append(batch, text)
	} else if json.Unmarshal(text, &batch) != nil {
		return nil
	}
	var msgs []jsonrpc.Message
	for _, raw := range batch {
		msg := decodeOne(raw)
		if msg == nil {
			return nil
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

// decodeOne reads results itself: it is what most messages are, and
// DecodeMessage takes 32 KiB of memory for each.
func decodeOne(text []byte) jsonrpc.Message {
	var fields map[string]json.RawMessage // a struct would take keys in any case
	if json.Unmarshal(text, &fields) != nil {
		return nil
	}
	id, err := strconv.ParseInt(string(fields["id"]), 10, 32) // we give small ones
	if err == nil && fields["method"] == nil && fields["error"] == nil && fields["result"] != nil && string(fields["jsonrpc"]) == `"2.0"` {
		id, _ := jsonrpc.MakeID(float64(id)) // it takes a number
		return &jsonrpc.Response{ID: id, Result: fields["result"]}
	}
	msg, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil
	}
	return msg
}
