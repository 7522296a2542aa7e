package standin

import (
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// line holds what distinguishes the stand-ins of the lines, besides their files.
type line struct {
	name    string
	tag     string // the version in /etc/aio_version and in the layout's tag
	created time.Time
	trees   []string // directories below files/; a later tree's file replaces an earlier one's
	node    map[string]string
	env     []string
}

// lines has one entry per line. Line C's Node versions, other than 22, are line B's.
var lines = map[string]line{
	"A": {
		name: "A", tag: "1.0.0.152", created: time.Date(2025, 11, 20, 8, 0, 0, 0, time.UTC),
		trees: []string{"common", "a"}, env: envA,
	},
	"B": {
		name: "B", tag: "1.9.3", created: time.Date(2026, 5, 12, 8, 0, 0, 0, time.UTC),
		trees: []string{"common", "b"}, env: envB,
		node: map[string]string{"20": "v20.20.2", "22": "v22.22.2", "24": "v24.15.0"},
	},
	"C": {
		name: "C", tag: "1.11.0", created: time.Date(2026, 6, 23, 8, 0, 0, 0, time.UTC),
		trees: []string{"common", "b", "c"}, env: envB,
		node: map[string]string{"20": "v20.20.2", "22": "v22.23.0", "24": "v24.15.0"},
	},
}

// isOld reports whether the line is A, from which the two later ones differ.
func (l line) isOld() bool { return l.name == "A" }

// config returns the image config without history and root file system.
func (l line) config(platform string) *v1.ConfigFile {
	c := &v1.ConfigFile{
		OS: "linux", Architecture: archOf(platform).name, Created: v1.Time{Time: l.created},
		Config: v1.Config{
			Env:          slices.Clone(l.env),
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			Labels: map[string]string{
				"org.opencontainers.image.title":       "aio-sandbox-standin-" + l.name,
				"org.opencontainers.image.description": "Stand-in for ghcr.io/agent-infra/sandbox, line " + l.name + ": its paths and holes",
				"org.opencontainers.image.version":     l.tag,
			},
		},
	}
	if l.isOld() {
		c.Config.Entrypoint = []string{"/opt/gem/run.sh"}
		c.Config.Healthcheck = &v1.HealthConfig{
			Test:     []string{"CMD-SHELL", `/bin/bash -lc 'nc -z localhost "${BROWSER_REMOTE_DEBUGGING_PORT}" || exit 1'`},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, Retries: 8,
		}
		return c
	}
	c.Config.Cmd = []string{"/opt/application/run.sh"}
	c.Config.WorkingDir = "/home/gem"
	return c
}

// The steps in the history that mark an image made from a stand-in.
const (
	standinStep = "ENV the other variables"
	liveStep    = "ADD debian.tar /" // of one that boots
)

// IsPlain reports whether an image was made from a stand-in without a root file system below, so that no program in it
// runs.
func IsPlain(c *v1.ConfigFile) bool {
	has := func(step string) bool {
		return slices.ContainsFunc(c.History, func(h v1.History) bool { return h.CreatedBy == step })
	}
	return has(standinStep) && !has(liveStep)
}

// history returns an entry per layer, and the empty ones that other instructions of a Dockerfile leave.
func (l line) history(layers []layer) []v1.History {
	var out []v1.History
	add := func(by string, empty bool) {
		out = append(out, v1.History{Created: v1.Time{Time: l.created}, CreatedBy: by, EmptyLayer: empty, Comment: "buildkit.dockerfile.v0"})
	}
	for i, layer := range layers {
		add(layer.by, false)
		if i == 0 {
			add("LABEL org.opencontainers.image.version="+l.tag, true)
			add("ENV USER=gem USER_UID=1000 USER_GID=1000", true)
		}
	}
	add(standinStep, true)
	add("EXPOSE [8080/tcp]", true)
	if l.isOld() {
		add(`HEALTHCHECK --interval=10s --timeout=5s --retries=8 CMD /bin/bash -lc 'nc -z localhost "${BROWSER_REMOTE_DEBUGGING_PORT}" || exit 1'`, true)
		add(`ENTRYPOINT ["/opt/gem/run.sh"]`, true)
	} else {
		add("WORKDIR /home/gem", true)
		add(`CMD ["/opt/application/run.sh"]`, true)
	}
	return out
}

// browserFlags is BROWSER_COMMANDLINE_ARGS in lines B and C; line A adds --disable-web-security.
const browserFlags = "--disable-background-timer-throttling --disable-backgrounding-occluded-windows" +
	" --disable-blink-features=AutomationControlled --disable-dev-shm-usage --disable-gpu --disable-infobars" +
	" --disable-popup-blocking --disable-site-isolation-trials --mute-audio --no-default-browser-check --no-first-run" +
	" --remote-allow-origins=* --remote-debugging-port=9222 --start-maximized"

var envA = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"DEBIAN_FRONTEND=noninteractive",
	"USER=gem", "USER_UID=1000", "USER_GID=1000",
	"DISPLAY=:99.0", "DISPLAY_WIDTH=1280", "DISPLAY_HEIGHT=1024", "DISPLAY_DEPTH=24",
	"XDG_RUNTIME_DIR=/tmp/runtime-gem",
	"BROWSER_EXECUTABLE_PATH=/usr/local/bin/browser",
	"BROWSER_REMOTE_DEBUGGING_PORT=9222",
	"BROWSER_COMMANDLINE_ARGS=" + browserFlags + " --disable-web-security",
	"BROWSER_EXTRA_ARGS=", "BROWSER_NO_SANDBOX=",
	"BROWSER_USER_AGENT=Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
	"DNS_OVER_HTTPS_TEMPLATES=",
	"LOG_DIR=/var/log/gem",
	"JWT_PUBLIC_KEY=",
	"VNC_SERVER_PORT=5900", "WEBSOCKET_PROXY_PORT=6080", "GEM_SERVER_PORT=8088", "MCP_SERVER_PORT=8089",
	"PUBLIC_PORT=8080", "AUTH_BACKEND_PORT=8081",
	"WAIT_PORTS=8091,8079", "WAIT_TIMEOUT=300", "WAIT_INTERVAL=0.25",
	"MCP_HUB_PORT=8079", "SANDBOX_SRV_PORT=8091", "JUPYTER_LAB_PORT=8888", "CODE_SERVER_PORT=8200",
	"MCP_SERVER_BROWSER_PORT=8100", "TINYPROXY_PORT=8118",
	"MAX_SHELL_SESSIONS=50",
	"LANG=en_US.UTF-8", "LANGUAGE=en_US:en", "LC_ALL=en_US.UTF-8", "TZ=Asia/Singapore",
	"PUPPETEER_EXECUTABLE_PATH=/usr/local/bin/browser", "PUPPETEER_SKIP_CHROMIUM_DOWNLOAD=true",
	"UV_TOOL_BIN_DIR=/usr/local/bin/", "UV_TOOL_DIR=/usr/local/share/uv/tools",
	"DISABLE_JUPYTER=false", "DISABLE_CODE_SERVER=false",
}

var envB = []string{
	"PATH=/opt/nodejs/22/bin:/opt/nodejs/20/bin:/opt/nodejs/24/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"DEBIAN_FRONTEND=noninteractive",
	"USER=gem", "USER_UID=1000", "USER_GID=1000",
	"NODEJS_DIR=/opt/nodejs", "NPM_CONFIG_PREFIX=/root/.npm-global",
	"WORKSPACE=", "HOMEPAGE=",
	"LANG=en_US.UTF-8", "LANGUAGE=en_US:en", "LC_ALL=en_US.UTF-8", "TZ=Asia/Singapore",
	"DISPLAY=:99.0", "DISPLAY_WIDTH=1280", "DISPLAY_HEIGHT=1024", "DISPLAY_DEPTH=24",
	"VNC_SERVER_PORT=5900", "WEBSOCKET_PROXY_PORT=6080",
	"LOG_DIR=/var/log/gem", "LOG_STDOUT_SERVER=false",
	"WAIT_PORTS=8091", "WAIT_FILES=", "WAIT_TIMEOUT=300", "WAIT_INTERVAL=0.25",
	"PUBLIC_PORT=8080", "AUTH_BACKEND_PORT=8081", "SANDBOX_SRV_PORT=8091", "JUPYTER_LAB_PORT=8888",
	"CODE_SERVER_PORT=8200", "MCP_SERVER_BROWSER_PORT=8100", "OPENCODE_PORT=4096", "TINYPROXY_PORT=8118",
	"NODE_CODE_EXEC_VERSION=node22", "PYTHON_CODE_EXEC_VERSION=python3",
	"DISABLE_NODEJS_REPL=false", "NODEJS_REPL_PORT=",
	"NODEJS_REPL_PORT_20=8192", "NODEJS_REPL_PORT_22=8092", "NODEJS_REPL_PORT_24=8392",
	"MAX_SHELL_SESSIONS=10",
	"BROWSER_REMOTE_DEBUGGING_PORT=9222",
	"BROWSER_EXECUTABLE_PATH=/usr/local/bin/browser", "AGENT_BROWSER_EXECUTABLE_PATH=/usr/local/bin/browser",
	"PUPPETEER_EXECUTABLE_PATH=/usr/local/bin/browser", "PUPPETEER_SKIP_CHROMIUM_DOWNLOAD=true",
	"BROWSER_NO_SANDBOX=--no-sandbox", "BROWSER_LANG=en-US", "BROWSER_USER_AGENT=", "BROWSER_EXTRA_ARGS=",
	"BROWSER_DOWNLOAD_DIR=", "BROWSER_URL_ALLOWLIST=", "BROWSER_URL_BLOCKLIST=",
	"BROWSER_COMMANDLINE_ARGS=" + browserFlags,
	"DISABLE_JUPYTER=false", "DISABLE_CODE_SERVER=false", "DISABLE_BROWSER=false", "DISABLE_MCP_BROWSER=false",
	"DISABLE_VNC=false", "ENABLE_CJK_IME=true",
	"EXTRA_MCP_SERVERS=", "DNS_OVER_HTTPS_TEMPLATES=", "PROXY_BYPASS_LIST=", "JWT_PUBLIC_KEY=",
	"AIO_BASE_URL=http://localhost:8091", "AIO_SKILLS_PATH=",
	"RUN_HOOK_INIT=", "RUN_HOOK_PRE_SERVICES=", "RUN_HOOK_POST_READY=", "RUN_HOOKS_STRICT=false",
	"SANDBOX_SHUTDOWN_HOOKS=", "SANDBOX_SHUTDOWN_HOOKS_TIMEOUT=30",
	"FAAS_SANDBOX_RUNTIME_INJECTION_ENABLE_SANDBOXD=false",
	"OTEL_SDK_DISABLED=false",
}
