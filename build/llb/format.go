package llb

import (
	"io"

	"github.com/moby/buildkit/client/llb"
	"google.golang.org/protobuf/proto"
)

// WritePB writes the definition in the format that `buildctl build` reads. Equal definitions give equal bytes.
func WritePB(w io.Writer, def *llb.Definition) error {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(def.ToPB())
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
