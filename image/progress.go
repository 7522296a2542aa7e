package image

// Progress displays long work: downloads, uploads, archives. Its methods may be called concurrently.
type Progress interface {
	// Task starts a task. total is its size in bytes; 0 or less means unknown.
	Task(name string, total int64) Task
}

// Task is a piece of work with a display of its own.
type Task interface {
	// Add reports n more bytes done. n is negative if work is discarded and repeated.
	Add(n int64)
	// Done ends the task, with its error or nil. Later calls do nothing.
	Done(err error)
}

// NoProgress displays nothing. It replaces a nil Options.Progress.
var NoProgress Progress = silent{}

type silent struct{}

func (silent) Task(string, int64) Task { return silent{} }
func (silent) Add(int64)               {}
func (silent) Done(error)              {}
