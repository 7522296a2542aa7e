package verify

// dynamicRules lists the rules that inspect/acceptance checks on a running image; Rules marks them Dynamic.
var dynamicRules = []Rule{
	{
		ID: "run-answers", Title: "A refusal says nothing of what runs behind it", Severity: Warning,
		Why: "A page or a version number in a refusal tells an outsider which program to look up.",
		Fix: "Set error_page to an empty answer and server_tokens off, as the profile's nginx overlay does.",
	},
	{
		ID: "run-auth", Title: "Without a good key nothing is served", Severity: Error, Holes: []string{"d", "i"},
		Why: "Whoever reaches the port would drive the browser, or see its screen.",
		Fix: "Keep auth_request in every location that answers, and match the path without its query.",
	},
	{
		ID: "run-executed", Title: "Nothing is executed but the profile's programs and what they start", Severity: Error,
		Why: "A page or a hook that starts a program has a foothold in the container, also when the program ends at once.",
		Fix: "Remove the file, or what starts it. For a page's addresses of other schemes keep the profile's chromium overlay.",
	},
	{
		ID: "run-key", Title: "Without a key the image doesn't start", Severity: Error,
		Why: "An operator who forgets the key would serve everybody.",
		Fix: "Keep the entrypoint `browser-shell init`, which refuses.",
	},
	{
		ID: "run-listeners", Title: "Nothing listens but what the profile names", Severity: Error, Holes: []string{"m"},
		Why: "Each socket is a way in that no route and no key guards.",
		Fix: "Remove what opens it, or bind it to loopback. Name it in expect.listeners only if your profile adds it on purpose.",
	},
	{
		ID: "run-processes", Title: "Every process comes from a program that the profile names", Severity: Error,
		Why: "What a hook or a script starts beside supervisord is in no configuration that could be read.",
		Fix: "Find out what started it (its arguments are in the message) and remove that.",
	},
	{
		ID: "run-programs", Title: "Exactly the profile's programs run", Severity: Error,
		Why: "A program more is surface that nobody looked at; one less, and the image doesn't do its job.",
		Fix: "Remove the program; the log of one that doesn't run is in the artifacts. Name it in expect.programs only if your profile adds it on purpose.",
	},
	{
		ID: reachRule, Title: "The image has what its programs open where it has all of the base", Severity: Error,
		Why: "A program that lacks a file fails later than at its start, or does its work otherwise.",
		Fix: "Keep the file: name it, its package or its opener in the profile's keep (docs/small.md). Name it in keep.unused if nothing is lost.",
	},
	{
		ID: "run-root", Title: "Only supervisord and nginx's master run as root", Severity: Error,
		Why: "Whoever takes over a program that is root has the container.",
		Fix: "Give the program a user= of its own in supervisord.conf.",
	},
	{
		ID: "run-routes", Title: "No path answers but those that the profile names", Severity: Error,
		Holes: []string{"a", "b", "c", "e", "f", "g", "h", "j", "k", "l"},
		Why:   "A route of the base leads to a shell, a file system, a debugging port or any port.",
		Fix:   "Serve the profile's nginx.conf alone, with exact locations and one server.",
	},
	{
		ID: "run-start", Title: "The image starts, with a read-only root and few capabilities, and gets healthy", Severity: Error,
		Why: "An image that needs more than it is given is run with more by somebody.",
		Fix: "See the container's log in evidence.json, among the artifacts.",
	},
	{
		ID: "run-stop", Title: "The image ends when it is told to", Severity: Warning,
		Why: "One that has to be killed loses what its programs had not written yet.",
		Fix: "See which program outlives its stop signal in the container's log.",
	},
	{
		ID: "run-tickets", Title: "A ticket opens the desktop and nothing else", Severity: Error,
		Why: "A person who may look would also drive the browser, or hand out tickets.",
		Fix: "Keep the profile's nginx overlay and browser-shell's gate.",
	},
	{
		ID: "run-tool", Title: "The one tool works, and refuses what its policy refuses", Severity: Error,
		Why: "A tool that runs scripts or opens files and private addresses is a shell in the container.",
		Fix: "Keep the profile's tool overlay and payload.",
	},
	{
		ID: "run-tools", Title: "/mcp lists exactly the profile's tools", Severity: Error, Holes: []string{"l"},
		Why: "Every other tool is something an agent can do that nobody meant it to.",
		Fix: "Have mcp-hub.json name the profile's servers and no other.",
	},
	{
		ID: "run-variables", Title: "No variable changes what the image does", Severity: Error,
		Why: "Who may set the environment of a container could open what was closed.",
		Fix: "Remove the script that reads the variable.",
	},
	{
		ID: "run-vnc", Title: "The desktop is served, to who has a key or a ticket", Severity: Error,
		Why: "A person could not watch the agent.",
		Fix: "See the logs of nginx, browser-shell and tigervnc among the artifacts.",
	},
}
