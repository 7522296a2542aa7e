package process

// Program is a program for Start, without a shell.
type Program struct {
	Path string   // absolute
	Argv []string // arguments after the program's name
	Env  []string // the complete environment except Mark; nothing is inherited
	Dir  string   // working directory; empty is ours
	// Mark is an environment variable, NAME=value, by which End finds the program's processes. It must be unique to
	// this program.
	Mark string
}
