package image

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// fileID is the state of a file, or of a part of it that starts at Off: as long as it is the same, so is the content,
// unless somebody sets the system's clock back or writes to the disk below the file system. Times are in nanoseconds.
// CTime is what can't be set by a program; the same MTime, Size and link count less one would not tell a link removed
// from a content changed with its MTime set back and a link removed.
type fileID struct {
	Dev, Ino uint64
	Size     int64
	MTime    int64
	CTime    int64
	Off      int64 `json:",omitempty"`
}

// verified remembers across runs which files matched their digest: dir/verified/ALGORITHM-HEX.json each. A nil
// *verified remembers nothing. It trusts its directory as the base index cache does.
type verified struct {
	dir string
	mu  sync.Mutex
}

func newVerified(cacheDir string) *verified {
	if cacheDir == "" {
		return nil
	}
	return &verified{dir: filepath.Join(cacheDir, "verified")}
}

// keep is how many files with one digest are remembered.
const keep = 8

// settled is how old a change must be before the state is trusted: a file written twice within one tick of the file
// system's clock has the same times twice.
func (id fileID) settled(now time.Time) bool {
	tick := 100 * time.Millisecond
	if id.CTime%int64(time.Second) == 0 {
		tick = 2 * time.Second // a file system that counts seconds
	}
	return now.Sub(time.Unix(0, max(id.CTime, id.MTime))) > tick
}

func (v *verified) has(h v1.Hash, id fileID) bool {
	return v != nil && slices.Contains(v.load(h), id)
}

func (v *verified) add(h v1.Hash, id fileID) {
	if v == nil || !id.settled(time.Now()) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	ids := slices.DeleteFunc(v.load(h), func(o fileID) bool {
		return o.Dev == id.Dev && o.Ino == id.Ino && o.Off == id.Off
	})
	ids = append(ids, id)
	ids = ids[max(0, len(ids)-keep):]
	v.save(h, ids)
}

func (v *verified) load(h v1.Hash) []fileID {
	raw, err := os.ReadFile(v.file(h))
	if err != nil {
		return nil
	}
	var ids []fileID
	if json.Unmarshal(raw, &ids) != nil {
		return nil
	}
	return ids
}

func (v *verified) file(h v1.Hash) string { return filepath.Join(v.dir, h.Algorithm+"-"+h.Hex+".json") }

// renew replaces the state of a file that is known to be good by its state after we linked it.
func (v *verified) renew(h v1.Hash, before, after fileID) {
	if v == nil || !v.has(h, before) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	ids := v.load(h)
	if i := slices.Index(ids, before); i >= 0 {
		ids[i] = after
		v.save(h, ids)
	}
}

// save ignores errors: a memory that can't be written costs time, nothing else.
func (v *verified) save(h v1.Hash, ids []fileID) {
	_ = WriteFile(v.file(h), 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(ids) })
}
