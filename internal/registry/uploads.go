package registry

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// upload is one session. Its bytes go to a file or to memory, and through the hash, as they arrive.
type upload struct {
	id, repo string

	mu   sync.Mutex
	path string // empty: in memory
	buf  bytes.Buffer
	hash hash.Hash
	size int64
}

func (r *Registry) newUpload(name string) (*upload, error) {
	u := &upload{id: rand.Text(), repo: name, hash: sha256.New()}
	if r.o.Dir != "" {
		u.path = filepath.Join(r.o.Dir, "uploads", u.id)
		f, err := os.OpenFile(u.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("start of upload: %w", err)
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("start of upload: %w", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uploads[u.id] = u
	return u, nil
}

// append adds body. What has arrived before a broken body stays, so that a client may go on from there.
func (u *upload) append(body io.Reader) error {
	var sink io.Writer = &u.buf
	if u.path != "" {
		f, err := os.OpenFile(u.path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		sink = f
	}
	_, err := io.CopyBuffer(io.MultiWriter(sink, u.hash, (*counter)(&u.size)), body, make([]byte, 256<<10))
	return err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func (u *upload) digest() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(u.hash.Sum(nil))}
}

// drop ends a session and throws away what it has, unless commit took it.
func (r *Registry) drop(u *upload) {
	r.mu.Lock()
	delete(r.uploads, u.id)
	r.mu.Unlock()
	if u.path != "" {
		_ = os.Remove(u.path) // already renamed, or a leftover that harms nobody
	}
}

// commit makes the session's bytes a blob of its repository if they have the digest.
func (r *Registry) commit(u *upload, want v1.Hash) error {
	if got := u.digest(); got != want {
		return errDigest("the %d bytes uploaded have digest %s, not %s", u.size, got, want)
	}
	c := content{data: u.buf.Bytes(), size: u.size}
	if u.path != "" {
		c = content{path: r.blobPath(want), size: u.size}
		if err := os.Rename(u.path, c.path); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link(u.repo, want, c)
	return nil
}

func (r *Registry) startUpload(x *exchange, name, _ string) error {
	q := x.req.URL.Query()
	if q.Has("mount") {
		if done, err := r.mount(x, name, q.Get("mount"), q.Get("from")); done || err != nil {
			return err
		}
	} else if q.Has("digest") && !r.o.NoMonolithic {
		return r.monolithic(x, name, q.Get("digest"))
	}
	u, err := r.newUpload(name)
	if err != nil {
		return err
	}
	return uploadAnswer(x, u, http.StatusAccepted)
}

// mount links a blob of another repository; done false asks for an ordinary upload.
func (r *Registry) mount(x *exchange, name, digest, from string) (done bool, err error) {
	x.setKind("mount refused")
	h, err := parseDigest(digest)
	if err != nil || r.o.NoMount {
		return false, err
	}
	r.mu.Lock()
	c, ok := r.lookup(from, h)
	if ok {
		r.link(name, h, c)
	}
	r.mu.Unlock()
	if !ok {
		return false, nil
	}
	x.setKind("mount")
	return true, created(x, name, h)
}

func (r *Registry) monolithic(x *exchange, name, digest string) error {
	h, err := parseDigest(digest)
	if err != nil {
		return err
	}
	u, err := r.newUpload(name)
	if err != nil {
		return err
	}
	return r.finishUpload(x, u, h)
}

func (r *Registry) patchUpload(x *exchange, name, id string) error {
	u, unlock, err := r.session(name, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := u.append(x.req.Body); err != nil {
		return r.appendFailed(u, err)
	}
	return uploadAnswer(x, u, http.StatusAccepted)
}

func (r *Registry) putUpload(x *exchange, name, id string) error {
	u, unlock, err := r.session(name, id)
	if err != nil {
		return err
	}
	defer unlock()
	h, err := parseDigest(x.req.URL.Query().Get("digest"))
	if err != nil {
		return err
	}
	return r.finishUpload(x, u, h)
}

// finishUpload takes the last bytes and commits. The session ends here, well or not.
func (r *Registry) finishUpload(x *exchange, u *upload, h v1.Hash) error {
	defer r.drop(u)
	if err := u.append(x.req.Body); err != nil {
		return r.appendFailed(u, err)
	}
	if err := r.commit(u, h); err != nil {
		return err
	}
	return created(x, u.repo, h)
}

// session finds an upload of the repository and keeps others out of it until unlock.
func (r *Registry) session(name, id string) (u *upload, unlock func(), err error) {
	unknown := &apiError{http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", fmt.Sprintf("no upload %q in %s", id, name), nil}
	r.mu.Lock()
	u = r.uploads[id]
	r.mu.Unlock()
	if u == nil || u.repo != name {
		return nil, nil, unknown
	}
	if !u.mu.TryLock() {
		return nil, nil, &apiError{http.StatusConflict, "BLOB_UPLOAD_INVALID", "another request is writing to this upload", nil}
	}
	r.mu.Lock()
	alive := r.uploads[id] == u
	r.mu.Unlock()
	if !alive { // it ended between the look-up and the lock
		u.mu.Unlock()
		return nil, nil, unknown
	}
	return u, u.mu.Unlock, nil
}

// appendFailed tells a body that broke off, which leaves the session usable, from a store that failed.
func (r *Registry) appendFailed(u *upload, err error) error {
	var store *os.PathError
	if errors.As(err, &store) {
		r.drop(u)
		return fmt.Errorf("blob store: %w", err)
	}
	return &apiError{http.StatusBadRequest, "BLOB_UPLOAD_INVALID", fmt.Sprintf("body broke off after %d bytes: %v", u.size, err), nil}
}

func uploadAnswer(x *exchange, u *upload, status int) error {
	x.Header().Set("Location", "/v2/"+u.repo+"/blobs/uploads/"+u.id)
	x.Header().Set("Docker-Upload-Uuid", u.id)
	// The range is inclusive; an empty upload is 0-0 by custom.
	x.Header().Set("Range", fmt.Sprintf("0-%d", max(u.size-1, 0)))
	x.WriteHeader(status)
	return nil
}

func created(x *exchange, name string, h v1.Hash) error {
	x.Header().Set("Location", "/v2/"+name+"/blobs/"+h.String())
	x.Header().Set("Docker-Content-Digest", h.String())
	x.WriteHeader(http.StatusCreated)
	return nil
}
