package policy

// executors lists tools of the base and of others that run arbitrary commands.
var executors = map[string]bool{
	"run_shell": true, "shell": true, "bash": true, "sh": true, "terminal": true, "eval": true,
	"exec": true, "execute": true, "execute_bash": true, "execute_command": true, "run_command": true,
	"sandbox_execute_bash": true, "sandbox_execute_code": true, "sandbox_execute_jupyter": true,
}

// IsExecutor reports whether a tool of this name usually runs arbitrary commands. A call of a missing tool with such a
// name is refused by name, and recorded.
func IsExecutor(tool string) bool { return executors[tool] }

// NoExecutor returns the refusal of such a call; instead names the tool to use.
func NoExecutor(instead string) *Refusal {
	return refuse(PolicyBlocked, "tool.executor", "there is no general executor here, and no setting that adds one; drive the browser with %s", instead)
}
