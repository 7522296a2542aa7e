package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Kinds of a Break.
const (
	Changed   = "changed"   // the content does not have the line's hash
	Removed   = "removed"   // one or more lines are missing before this one
	Inserted  = "inserted"  // the line does not belong here; the next one continues without it
	Reordered = "reordered" // the line's place is before an earlier one
	Torn      = "torn"      // the last line is incomplete
	Cut       = "cut"       // the anchor is not in the chain: the end is missing, or was rewritten
)

// Report is the result of Verify.
type Report struct {
	OK       bool      `json:"ok"`
	Lines    int       `json:"lines"` // consecutive valid lines, from the first on
	FirstSeq int64     `json:"first_seq"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	LastSeq  int64     `json:"last_seq"`
	Head     string    `json:"head"`     // hash of the last good line
	Complete bool      `json:"complete"` // it begins with the log's very first line
	Break    *Break    `json:"break,omitempty"`
}

// Break is the first place where the chain is broken. Later lines prove nothing.
type Break struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// place is a line with its position.
type place struct {
	entry
	file string
	line int
	torn bool
}

var isAnchor = lazyregexp.New(`^(?:([1-9][0-9]{0,17}):)?([0-9a-f]{64})$`)

// parseAnchor parses [SEQ:]HASH. Without a number seq is 0, and without an anchor hash is empty.
func parseAnchor(text string) (head, error) {
	if text == "" {
		return head{}, nil
	}
	m := isAnchor.FindStringSubmatch(text)
	if m == nil {
		return head{}, fmt.Errorf("anchor %q: want SEQ:HASH, the number of a line and its 64 lower-case hexadecimal digits", text)
	}
	seq, _ := strconv.ParseInt(cmp.Or(m[1], "0"), 10, 64) // digits
	return head{seq, m[2]}, nil
}

// isAnchor reports whether h is the line of the anchor.
func (anchor head) isAnchor(h head) bool {
	return anchor.hash == h.hash && (anchor.seq == 0 || anchor.seq == h.seq)
}

// Verify verifies the files of one log, in any order. anchor is SEQ:HASH or HASH of a line that must be in the chain,
// or directly before its first line; "" for none. Without an anchor the first line must be the log's very first. The
// error is for unreadable files; a broken chain is not an error.
func Verify(anchor string, files ...string) (Report, error) {
	from, err := parseAnchor(anchor)
	if err != nil {
		return Report{}, err
	}
	var chains [][]place
	for _, name := range files {
		lines, err := readLines(name)
		if err != nil {
			return Report{}, err
		}
		if len(lines) > 0 {
			chains = append(chains, lines)
		}
	}
	// Oldest first; the walk checks whether they fit together.
	slices.SortStableFunc(chains, func(a, b []place) int { return int(a[0].seq - b[0].seq) })
	lines := slices.Concat(chains...)
	r := walkChain(lines, from)
	if len(lines) == 0 && anchor != "" {
		r.Break = &Break{File: files[0], Line: 1, Kind: Cut, Text: "there is no line at all"}
	}
	r.OK = r.Break == nil
	return r, nil
}

// maxStrange limits the lines of another form that are read from a file.
const maxStrange = 1000

func readLines(name string) ([]place, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, quoteName(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%q is not a regular file", name), quoteName(err))
	}
	var lines []place
	strange := 0
	r := bufio.NewReaderSize(f, maxLine)
	for n := 1; ; n++ {
		b, err := r.ReadSlice('\n')
		p := place{file: name, line: n}
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // too long for a line: not one of ours
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, quoteName(err)
			}
		case errors.Is(err, io.EOF):
			if len(b) > 0 {
				p.torn = true
				lines = append(lines, p)
			}
			return lines, nil
		case err != nil:
			return nil, quoteName(err)
		default:
			p.entry = parseLine(bytes.TrimSuffix(b, []byte("\n")))
		}
		lines = append(lines, p)
		if !p.ok {
			strange++
		}
		if strange > maxStrange { // a foreign file of any size; the first such line is reported
			return lines, nil
		}
	}
}

// quoteName quotes the name in an error about a file, since a collector may choose any name.
func quoteName(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", e.Op, e.Path, e.Err)
	}
	return err
}

func walkChain(lines []place, anchor head) Report {
	var r Report
	last := genesis
	found := anchor.hash == ""
	for i, p := range lines {
		if i == 0 && p.ok && p.true && (p.seq > 1 || p.prev == genesis.hash) {
			last = head{p.seq - 1, p.prev} // older files may be elsewhere: the anchor decides
			found = found || anchor.isAnchor(last)
			r.FirstSeq, r.First, r.Complete = p.seq, p.ts, p.seq == 1
		}
		if !p.follows(last) {
			r.Break = diagnose(lines, i, last)
			return r
		}
		last = p.head
		found = found || anchor.isAnchor(p.head)
		r.Lines, r.Last, r.LastSeq, r.Head = i+1, p.ts, p.seq, p.hash
	}
	switch {
	case len(lines) == 0:
	case !found:
		p := lines[len(lines)-1]
		r.Break = &Break{p.file, p.line, Cut, "the anchor is not in the chain: lines after this one were removed, or the log was written anew"}
	case !r.Complete && anchor.hash == "":
		p := lines[0]
		r.Break = &Break{p.file, p.line, Removed, fmt.Sprintf(
			"seq 1 to %d are missing; if you keep them elsewhere give the last one of them: --anchor %d:%s", p.seq-1, p.seq-1, p.prev)}
	}
	return r
}

// diagnose returns the Break at line i, which does not follow last.
func diagnose(lines []place, i int, last head) *Break {
	p := lines[i]
	b := &Break{File: p.file, Line: p.line}
	goesOn := slices.IndexFunc(lines[i+1:], func(q place) bool { return q.follows(last) }) // where the line that would follow is
	switch {
	case p.torn:
		b.Kind, b.Text = Torn, "the line has no end"
	case goesOn == 0 && !hasHash(lines[i+1:], p.prev):
		b.Kind, b.Text = Inserted, "the line does not belong here: the next one goes on without it"
	case !p.ok:
		b.Kind, b.Text = Changed, "the line is not one of an audit log"
	case !p.true:
		b.Kind, b.Text = Changed, fmt.Sprintf("the content of seq %d does not have its hash", p.seq)
	case goesOn >= 0:
		b.Kind, b.Text = Reordered, fmt.Sprintf("seq %d stands before seq %d", p.seq, last.seq+1)
	case p.seq > last.seq+1:
		b.Kind, b.Text = Removed, fmt.Sprintf("seq %d to %d are missing", last.seq+1, p.seq-1)
	case i > 1 && p.prev == lines[i-2].hash:
		q := lines[i-1]
		b.File, b.Line, b.Kind, b.Text = q.file, q.line, Inserted, "the line does not belong here: the next one goes on without it"
	default:
		b.Kind, b.Text = Inserted, fmt.Sprintf("seq %d does not follow seq %d", p.seq, last.seq)
	}
	return b
}

func hasHash(lines []place, hash string) bool {
	return slices.ContainsFunc(lines, func(q place) bool { return q.ok && q.hash == hash })
}
