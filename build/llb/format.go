package llb

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/proto"
)

// Vertex is one operation of a definition, in printable form.
type Vertex struct {
	Digest   digest.Digest   `json:"digest"`
	Name     string          `json:"name"`
	Platform string          `json:"platform,omitempty"`
	Inputs   []digest.Digest `json:"inputs,omitempty"`
	Op       *pb.Op          `json:"op"`
}

// Vertices returns the operations of a definition, inputs first. It omits the last one, which only names the result.
func Vertices(def *llb.Definition) ([]Vertex, error) {
	var out []Vertex
	for _, dt := range def.Def {
		var op pb.Op
		if err := op.UnmarshalVT(dt); err != nil {
			return nil, err
		}
		if op.Op == nil {
			continue
		}
		v := Vertex{Digest: digest.FromBytes(dt), Op: &op}
		v.Name = def.Metadata[v.Digest].Description["llb.customname"]
		if p := op.Platform; p != nil {
			v.Platform = p.OS + "/" + p.Architecture
		}
		for _, in := range op.Inputs {
			v.Inputs = append(v.Inputs, digest.Digest(in.Digest))
		}
		out = append(out, v)
	}
	return out, nil
}

// WritePB writes the definition in the format that `buildctl build` reads. Equal definitions give equal bytes.
func WritePB(w io.Writer, def *llb.Definition) error {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(def.ToPB())
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// WriteJSON writes one JSON object per vertex and line.
func WriteJSON(w io.Writer, def *llb.Definition) error {
	vertices, err := Vertices(def)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(w)
	for _, v := range vertices {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// WriteDot writes the graph for Graphviz.
func WriteDot(w io.Writer, def *llb.Definition) error {
	vertices, err := Vertices(def)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("digraph llb {\n  rankdir=LR;\n  node [shape=box];\n")
	for _, v := range vertices {
		name := v.Name
		if s := v.Op.GetSource(); name == "" && s != nil {
			name = s.Identifier
		}
		fmt.Fprintf(&b, "  %q [label=%q];\n", v.Digest, name)
		for _, in := range v.Inputs {
			fmt.Fprintf(&b, "  %q -> %q;\n", in, v.Digest)
		}
	}
	b.WriteString("}\n")
	_, err = io.WriteString(w, b.String())
	return err
}
