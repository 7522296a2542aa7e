package acceptance

// variables lists every variable that opens a base at run time, or could open an image made from one, each with its
// visible effect. Commands create a file in /tmp with the variable's name.
var variables = map[string]string{
	// Programs of the base.
	"DISABLE_JUPYTER": "false", "DISABLE_CODE_SERVER": "false", "DISABLE_BROWSER": "true", "DISABLE_MCP_BROWSER": "false",
	"DISABLE_VNC": "true", "DISABLE_NODEJS_REPL": "false", "ENABLE_CJK_IME": "true",
	"AUTOSTART_JUPYTER": "true", "AUTOSTART_CODE_SERVER": "true", "AUTOSTART_BROWSER": "false", "AUTOSTART_VNC": "false",
	"AUTOSTART_NODEJS_REPL_22": "true", "FAAS_SANDBOX_RUNTIME_INJECTION_ENABLE_SANDBOXD": "true",
	// MCP servers.
	"EXTRA_MCP_SERVERS": `{"evil":{"type":"stdio","command":"touch","args":["/tmp/EXTRA_MCP_SERVERS"]}}`, "MCP_HUB_CONFIG": "/tmp/evil.json",
	// Commands.
	"RUN_HOOK_INIT": "touch /tmp/RUN_HOOK_INIT", "RUN_HOOK_PRE_SERVICES": "touch /tmp/RUN_HOOK_PRE_SERVICES",
	"RUN_HOOK_POST_READY": "touch /tmp/RUN_HOOK_POST_READY", "RUN_HOOKS_STRICT": "1",
	"SANDBOX_SHUTDOWN_HOOKS": `["touch /tmp/SANDBOX_SHUTDOWN_HOOKS"]`, "PROXY_AUTH_CMD": "touch /tmp/PROXY_AUTH_CMD",
	// Destinations of traffic.
	"PROXY_SERVER": "http://192.0.2.1:3128", "PROXY_AUTH_WATCH": "1", "PROXY_MAP": "example.com=127.0.0.1:9222", "PROXY_EXCLUDE": "*",
	"PROXY_INCLUDE": "*", "PROXY_BYPASS_LIST": "*", "HTTP_PROXY": "http://192.0.2.1:3128", "http_proxy": "http://192.0.2.1:3128", "NO_PROXY": "*",
	"DNS_OVER_HTTPS_TEMPLATES": "https://192.0.2.1/dns",
	// The browser's command line and policies.
	"BROWSER_EXTRA_ARGS":       "--remote-debugging-address=0.0.0.0 --remote-debugging-port=9333 --proxy-server=direct://",
	"BROWSER_COMMANDLINE_ARGS": "--remote-debugging-port=9444", "BROWSER_NO_SANDBOX": "", "CHROMIUM_FLAGS": "--remote-debugging-port=9555",
	"BROWSER_URL_BLOCKLIST": "", "BROWSER_URL_ALLOWLIST": "*", "BROWSER_SHELL_TEST_SITE": "127.0.0.1:1",
	// Listeners.
	"PUBLIC_PORT": "9090", "PUBLIC_LISTEN_IPV4": "0.0.0.0:9091", "PUBLIC_LISTEN_IPV6": "[::]:9092", "RUNTIME_LISTEN": "listen 9093;",
	"_BYTEFAAS_RUNTIME_PORT": "9094", "MCP_HUB_PORT": "9095", "GEM_SERVER_PORT": "9096", "SANDBOX_SRV_PORT": "9097",
	"BROWSER_REMOTE_DEBUGGING_PORT": "9098", "WEBSOCKET_PROXY_PORT": "9099", "AUTH_BACKEND_PORT": "9100", "TINYPROXY_PORT": "9101",
	"VNC_SERVER_PORT": "9102", "SUPERVISOR_SERVER_URL": "http://0.0.0.0:9001",
	// Endless or skipped waiting.
	"WAIT_PORTS": "1", "WAIT_FILES": "/nowhere", "WAIT_TIMEOUT": "100000", "MCP_HUB_WAIT_PORTS": "1", "FASTAPI_WAIT_SKIP": "0",
	// Accounts and places.
	"USER": "root", "AIO_USER": "root", "USER_UID": "0", "USER_GID": "0", "WORKSPACE": "/etc", "HOME": "/tmp/HOME", "LOG_DIR": "/tmp", "XDG_CONFIG_HOME": "/tmp",
	"SLIM_DESKTOP_USER": "root", "SLIM_SERVICE_USER": "root", "SLIM_SUPERVISOR_USER": "gem", "SLIM_NGINX_CONF": "/tmp/evil.conf", "NGINX_CONF": "/tmp/evil.conf",
	// Code and configuration.
	"PATH": "/tmp:/usr/bin", "LD_PRELOAD": "/tmp/evil.so", "LD_LIBRARY_PATH": "/tmp", "BASH_ENV": "/tmp/evil.sh", "NODE_OPTIONS": "--require /tmp/evil.js",
	"SRV_PYTHONPATH": "/tmp", "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/tmp/x.py", "AIO_SKILLS_PATH": "/tmp", "OPENCODE_CONFIG": "/tmp/x", "CODEX_HOME": "/tmp",
	"GODEBUG": "x=1", "AGENT_BROWSER_EXECUTABLE_PATH": "/tmp/evil", "AGENT_BROWSER_CONFIG": "/tmp/evil.json", "ENV_X": "%(ENV_PATH)s",
	"MAX_SHELL_SESSIONS": "1000", "LOG_STDOUT_SERVER": "true", "DISPLAY_WIDTH": "1 -localhost=0", "DISPLAY": ":1",
}
