package image

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// DigestError is a blob, corrupt or forged, whose bytes don't have its digest.
type DigestError struct {
	Want v1.Hash
	// Got is the digest of the bytes read; empty if the size was wrong.
	Got v1.Hash
	// WantSize and GotSize are in bytes. They are set only if the sizes differ; GotSize is then a lower bound.
	WantSize, GotSize int64
	// Where is the file or the reference of the blob.
	Where string
}

func (e *DigestError) Error() string {
	if e.Got.Hex == "" {
		return fmt.Sprintf("%s: blob %s is corrupt: %d bytes, want %d", e.Where, e.Want, e.GotSize, e.WantSize)
	}
	return fmt.Sprintf("%s: blob %s is corrupt: its bytes have digest %s", e.Where, e.Want, e.Got)
}

// verifyReader reads a blob of a known size. It returns the last bytes only after verifying the digest, so even a
// caller that copies by size can't take a corrupt blob.
type verifyReader struct {
	in    io.ReadCloser
	hash  hash.Hash
	want  v1.Hash
	size  int64
	where string

	read int64
	err  error
	good func() // called once after a match
}

// Verify returns a reader of a blob in the file where. It fails before its last bytes if the digest is wrong. Sources
// and outputs don't hash its output again.
func Verify(in io.ReadCloser, want v1.Hash, size int64, where string) (io.ReadCloser, error) {
	return newVerifyReader(in, want, size, where, nil)
}

// newVerifyReader checks in against want and size; good may be nil.
func newVerifyReader(in io.ReadCloser, want v1.Hash, size int64, where string, good func()) (io.ReadCloser, error) {
	h, err := v1.Hasher(want.Algorithm)
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return &verifyReader{in: in, hash: h, want: want, size: size, where: where, good: good}, nil
}

func (r *verifyReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if r.read == r.size { // an empty blob
		r.err = r.finish()
		return 0, r.err
	}
	n, err := r.in.Read(p)
	r.read += int64(n)
	if r.read > r.size {
		r.err = r.wrongSize()
		return 0, r.err
	}
	r.hash.Write(p[:n])
	switch {
	case r.read == r.size:
		if r.err = r.finish(); !errors.Is(r.err, io.EOF) {
			return 0, r.err
		}
		return n, nil
	case err == io.EOF:
		r.err = r.wrongSize()
	case err != nil:
		r.err = err
	}
	return n, r.err
}

// finish checks that the blob has ended and compares the digest.
func (r *verifyReader) finish() error {
	var more [1]byte
	n, err := io.ReadFull(r.in, more[:])
	if n > 0 {
		r.read++
		return r.wrongSize()
	}
	if err != nil && err != io.EOF {
		return err
	}
	got := v1.Hash{Algorithm: r.want.Algorithm, Hex: hex.EncodeToString(r.hash.Sum(nil))}
	if got != r.want {
		return &DigestError{Want: r.want, Got: got, Where: r.where}
	}
	if r.good != nil {
		r.good()
	}
	return io.EOF
}

func (r *verifyReader) wrongSize() error {
	return &DigestError{Want: r.want, WantSize: r.size, GotSize: r.read, Where: r.where}
}

func (r *verifyReader) Close() error { return r.in.Close() }

// remoteMismatch matches go-containerregistry's errors for wrong digests, whose types are internal.
var remoteMismatch = regexp.MustCompile(`error verifying sha256 checksum after reading \d+ bytes; got "sha256:([0-9a-f]{64})"` +
	`|manifest digest: "sha256:([0-9a-f]{64})" does not match requested digest`)

// asDigestError returns go-containerregistry's error for a wrong digest as a *DigestError, or nil for any other error.
func asDigestError(err error, want v1.Hash, where string) error {
	var de *DigestError
	if err == nil || errors.As(err, &de) {
		return err
	}
	m := remoteMismatch.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	return &DigestError{Want: want, Got: v1.Hash{Algorithm: "sha256", Hex: m[1] + m[2]}, Where: where}
}
