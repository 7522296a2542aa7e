package process

// Program is a program that Start starts, without a shell.
type Program struct {
	Path string   // absolute
	Argv []string // what follows the program's name
	Env  []string // the whole environment but Mark; nothing is inherited
	Dir  string   // working directory; empty is ours
	// Mark is a NAME=value for its environment by which End finds what it
	// started. It must be this program's alone.
	Mark string
}
