package progress

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
)

// bars shows a bar for each running task. A finished bar disappears, so that an image of a hundred layers fits on a
// screen.
type bars struct {
	p      *mpb.Progress
	closed atomic.Bool
}

func newBars(w io.Writer) *bars {
	return &bars{p: mpb.New(mpb.WithOutput(w), mpb.WithWidth(48), mpb.WithAutoRefresh(),
		mpb.WithRefreshRate(150*time.Millisecond))}
}

func (b *bars) Task(name string, total int64) image.Task {
	if b.closed.Load() {
		return image.NoProgress.Task(name, total)
	}
	options := []mpb.BarOption{
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(rawname.Line(name), decor.WC{C: decor.DSyncWidthR | decor.DextraSpace})),
	}
	var filler mpb.BarFillerBuilder = mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding("-").Rbound("]")
	if total > 0 {
		options = append(options, mpb.AppendDecorators(
			decor.CountersKiloByte("% .1f / % .1f", decor.WCSyncSpace),
			decor.AverageSpeed(decor.SizeB1000(0), "% .1f", decor.WCSyncSpace),
		))
	} else {
		total = 0
		filler = mpb.SpinnerStyle("|", "/", "-", "\\").PositionLeft()
		options = append(options, mpb.AppendDecorators(decor.CurrentKiloByte("% .1f", decor.WCSyncSpace)))
	}
	bar, err := b.p.Add(total, filler.Build(), options...)
	if err != nil { // closed in the meantime
		return image.NoProgress.Task(name, total)
	}
	return &barTask{bar: bar}
}

// Close removes the bars and waits for the last drawing.
func (b *bars) Close() error {
	if !b.closed.Swap(true) {
		b.p.Shutdown()
	}
	return nil
}

// Printf writes a line above the bars.
func (b *bars) Printf(format string, args ...any) {
	fmt.Fprintln(b.p, rawname.Line(fmt.Sprintf(format, args...)))
}

type barTask struct {
	bar   *mpb.Bar
	bytes atomic.Int64
}

func (t *barTask) Add(n int64) { t.bar.SetCurrent(t.bytes.Add(n)) }

func (t *barTask) Done(err error) {
	if err != nil {
		t.bar.Abort(true)
		return
	}
	t.bar.SetTotal(-1, true)
}
