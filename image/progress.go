package image

// Progress is told of long work: downloads, uploads, archives. Its methods are called from several goroutines at once.
type Progress interface {
	// Task opens one line of work. total is in bytes; 0 or less when it is not known.
	Task(name string, total int64) Task
}

// Task is one line of work.
type Task interface {
	// Add says that n more bytes are done; n is negative when work is thrown away to be done again.
	Add(n int64)
	// Done ends the task, with the error that ended it or nil. Calls after the first do nothing.
	Done(err error)
}

// NoProgress tells nobody. It is what a nil Options.Progress means.
var NoProgress Progress = silent{}

type silent struct{}

func (silent) Task(string, int64) Task { return silent{} }
func (silent) Add(int64)               {}
func (silent) Done(error)              {}
