package strip

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
)

// Pin identifies a layer in a lock, so that builds and verifications don't make it again.
type Pin struct {
	Component string  `json:"component"`
	Key       string  `json:"key"`
	Digest    v1.Hash `json:"digest"`
	DiffID    v1.Hash `json:"diffID"`
	Size      int64   `json:"size"`
	Files     int     `json:"files"`
	Unpacked  int64   `json:"unpacked"`
}

// Pin returns the layer's pin.
func (l Layer) Pin() (p Pin, err error) {
	p = Pin{Component: l.Component, Key: l.Key, Files: l.Files, Unpacked: l.Unpacked}
	if p.Digest, err = l.Digest(); err != nil {
		return p, err
	}
	if p.DiffID, err = l.DiffID(); err != nil {
		return p, err
	}
	p.Size, err = l.Layer.Size()
	return p, err
}

// Pinned returns layers with only their digests known. They are read from the cache; if one is missing there, make makes
// all of them, once.
func Pinned(cacheDir string, pins []Pin, make func() ([]Layer, error)) ([]Layer, error) {
	store, err := newStore(cacheDir)
	if err != nil {
		return nil, err
	}
	again := sync.OnceValues(make)
	out := []Layer{}
	for _, p := range pins {
		out = append(out, Layer{Component: p.Component, Key: p.Key, Files: p.Files, Unpacked: p.Unpacked, Layer: &pinned{Pin: p, store: store, make: again}})
	}
	return out, nil
}

// Remembered returns layers and their pins. If layers were made before with the same key, they are Pinned. Otherwise
// make makes them and the cache stores their pins. The key must change whenever make's result does.
func Remembered(cacheDir, key string, make func() ([]Layer, error)) (layers []Layer, pins []Pin, err error) {
	store, err := newStore(cacheDir)
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(store.dir, key+".pins")
	if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &pins) == nil && len(pins) > 0 {
		layers, err = Pinned(cacheDir, pins, make)
		return layers, pins, err
	}
	if layers, err = make(); err != nil {
		return nil, nil, err
	}
	pins = nil
	for _, l := range layers {
		p, err := l.Pin()
		if err != nil {
			return nil, nil, err
		}
		pins = append(pins, p)
	}
	data, err := json.Marshal(pins)
	if err != nil {
		return nil, nil, err
	}
	return layers, pins, image.WriteBytes(file, 0o644, data)
}

// pinAgain is the remedy for a wrong pin in a lock or in the cache.
const pinAgain = "run `slimctl lock` again, or without a lock delete slimctl's cache directory"

// pinned is a layer with known digests that has not been read.
type pinned struct {
	Pin
	store store
	make  func() ([]Layer, error)
}

func (p *pinned) Digest() (v1.Hash, error)            { return p.Pin.Digest, nil }
func (p *pinned) DiffID() (v1.Hash, error)            { return p.Pin.DiffID, nil }
func (p *pinned) Size() (int64, error)                { return p.Pin.Size, nil }
func (p *pinned) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

func (p *pinned) layer() (v1.Layer, error) {
	for _, again := range []bool{false, true} {
		if again {
			if _, err := p.make(); err != nil {
				return nil, err
			}
		}
		l := p.store.get(p.Key)
		if l == nil {
			continue
		}
		have, err := Layer{Layer: l, Component: p.Component, Key: p.Key, Files: p.Files, Unpacked: p.Unpacked}.Pin()
		switch {
		case err != nil:
			return nil, err
		case have.Digest != p.Pin.Digest:
			return nil, fmt.Errorf("component %s has digest %s, but another slimctl pinned it as %s; %s", p.Component, have.Digest, p.Pin.Digest, pinAgain)
		case have != p.Pin:
			return nil, fmt.Errorf("component %s is pinned with diffID %s and size %d, but has diffID %s and size %d; %s",
				p.Component, p.Pin.DiffID, p.Pin.Size, have.DiffID, have.Size, pinAgain)
		}
		return l, nil
	}
	return nil, fmt.Errorf("component %s: %w", p.Component, os.ErrNotExist)
}

// Compressed implements v1.Layer.
func (p *pinned) Compressed() (io.ReadCloser, error) {
	l, err := p.layer()
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}

// Uncompressed implements v1.Layer.
func (p *pinned) Uncompressed() (io.ReadCloser, error) {
	l, err := p.layer()
	if err != nil {
		return nil, err
	}
	return l.Uncompressed()
}
