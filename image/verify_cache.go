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

// fileID is the state of a file, or of a part that starts at Off. While it is the same, so is the content, unless
// somebody sets the clock back or writes below the file system. Times are in nanoseconds. Programs can't set CTime.
// Without it, an equal MTime, Size and link count could hide a content changed with its MTime set back.
type fileID struct {
	Dev, Ino uint64
	Size     int64
	MTime    int64
	CTime    int64
	Off      int64 `json:",omitempty"`
}

// verified remembers across runs which files had their digest, in dir/verified/ALGORITHM-HEX.json. A nil *verified
// remembers nothing. It trusts its directory, like the cache of the base index.
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

// keep is the number of files remembered per digest.
const keep = 8

// isSettled reports whether the state is older than one tick of the file system's clock. Two writes within a tick have
// the same times.
func (id fileID) isSettled(now time.Time) bool {
	tick := 100 * time.Millisecond
	if id.CTime%int64(time.Second) == 0 {
		tick = 2 * time.Second // a file system with times in seconds
	}
	return now.Sub(time.Unix(0, max(id.CTime, id.MTime))) > tick
}

func (v *verified) has(h v1.Hash, id fileID) bool {
	return v != nil && slices.Contains(v.load(h), id)
}

func (v *verified) add(h v1.Hash, id fileID) {
	if v == nil || !id.isSettled(time.Now()) {
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

// renew replaces the state of a verified file by its state after we linked it.
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

// save ignores errors: without the memory, verification only takes longer.
func (v *verified) save(h v1.Hash, ids []fileID) {
	_ = WriteFile(v.file(h), 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(ids) })
}
