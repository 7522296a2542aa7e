package verify

import (
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/start"
)

var startRules = []rule{
	{Rule: Rule{
		ID: "start-entrypoint", Title: "The container starts with the program that the profile lays", Severity: Error,
		Why: "Whatever starts first decides on everything else, as root: the base's start scripts run words of the environment and give the desktop user sudo.",
		Fix: "Set config.entrypoint to the laid program, and build again.",
	}, each: startEntrypoint},
	{Rule: Rule{
		ID: "start-script", Title: "No script runs at the start", Severity: Error, Holes: []string{"k"},
		Why: "The base's scripts run variables such as RUN_HOOK_INIT as commands, look programs up in directories of the desktop user, give that user sudo, and write configuration anew at each start: a file that was emptied or removed is back, filled from the environment.",
		Fix: "Start with browser-shell init, and remove the scripts.",
	}, each: startScripts},
	{Rule: Rule{
		ID: "start-environment", Title: "Programs get nothing of the container's environment", Severity: Error,
		Why: "A variable that reaches a program can change what it does in ways that no list has: LD_PRELOAD, NODE_OPTIONS, a flag that the next version reads.",
		Fix: "Start with browser-shell init, which gives programs an environment made from nothing.",
	}, each: startEnvironment},
	{Rule: Rule{
		ID: "switch", Title: "Only the profile's variables change what the image does", Severity: Error,
		Why: "Anything that a variable can bring back is not closed: DISABLE_JUPYTER=false starts jupyter, EXTRA_MCP_SERVERS adds any command to /mcp, BROWSER_EXTRA_ARGS opens the debugging port.",
		Fix: "Remove what reads the variable. Name it in expect.switches only if your profile adds it on purpose.",
	}, each: switches},
	{Rule: Rule{
		ID: "switch-set", Title: "The image sets no switch", Severity: Error,
		Why: "Who publishes an image with SLIM_ALLOW_ANONYMOUS=true, or with a key of his own in SANDBOX_API_KEY or JWT_PUBLIC_KEY, can enter every container of it that does not set another.",
		Fix: "Set the variable to nothing, or build again: what the profile does not name goes.",
	}, each: switchesSet},
	{Rule: Rule{
		ID: "env-loader", Title: "The image sets no variable that loads code", Severity: Error,
		Why: "LD_PRELOAD, BASH_ENV, PYTHONPATH and their like run somebody's code in every program of the container, the entrypoint and docker exec among them.",
		Fix: "Build again: what the profile does not name goes.",
	}, each: loadersSet},
	{Rule: Rule{
		ID: "autoload", Title: "No file is loaded into every program", Severity: Error,
		Why: "What /etc/ld.so.preload names runs inside of programs that this report calls good.",
		Fix: "Remove the file.",
	}, each: autoload},
}

func startEntrypoint(h *held) {
	c := h.Surface.Config
	command := slices.Concat(c.Entrypoint, c.Cmd)
	if len(command) == 0 {
		h.reportFinding("entrypoint", nil, "the image has neither entrypoint nor command: whoever starts it chooses")
		return
	}
	if !h.isLaidProgram(command[0]) {
		h.reportFinding(command[0], h.at(command[0]), "the image starts %s, which is no program that the profile lays", command[0])
	}
}

func startScripts(h *held) {
	for _, s := range h.Surface.Start.Scripts {
		h.reportFinding(s.Path, []tree.Place{s.Place}, "%s is run at the start, by %s", s.Path, s.By)
	}
}

func startEnvironment(h *held) {
	if s := h.Surface.Start; !s.Clean {
		var at []tree.Place
		if len(s.Command) > 0 {
			at = h.at(s.Command[0])
		}
		h.reportFinding("", at, "programs get the environment that the container is started with")
	}
}

func switches(h *held) {
	for _, s := range h.Surface.Start.Switches {
		if !slices.Contains(h.want.Switches, s.Name) {
			h.reportFinding(s.Name, s.Places, "%s changes what the image does (%s): %s", s.Name, s.Kind, s.Effect)
		}
	}
}

// harmlessSwitch is safe with any value: browser-shell init accepts names of time zones only.
const harmlessSwitch = "TZ"

func switchesSet(h *held) {
	set := h.Surface.Config.Env
	names := slices.Clone(h.want.Switches)
	for _, s := range h.Surface.Start.Switches {
		names = append(names, s.Name)
		if s.Kind == start.Auth && s.Set && s.Value != "" && set[s.Name] == "" {
			h.reportFinding(s.Name, s.Places, "the image sets %s", s.Name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if value := set[name]; value != "" && value != h.want.Env[name] && name != harmlessSwitch {
			h.reportFinding(name, nil, "the image sets %s", name)
		}
	}
}

func loadersSet(h *held) {
	for _, name := range sortedKeys(h.Surface.Config.Env) {
		value := h.Surface.Config.Env[name]
		if _, ours := h.want.Env[name]; value != "" && !ours && loaders.MatchString(name) {
			h.reportFinding(name, nil, "the image sets %s", name)
		}
	}
}

func autoload(h *held) {
	const preload = "/etc/ld.so.preload"
	if e, ok := h.Files.Lookup(preload); ok && (e.Size > 0 || e.Type != image.TypeFile) {
		h.reportFinding(preload, h.at(preload), "%s loads code into every program", preload)
	}
}
