// Package assets holds the files that the profiles of slimctl lay on a base: `source: asset:NAME` is NAME in FS.
package assets

import "embed"

// FS holds every asset by its path below this directory, such as nginx/nginx.conf.
//
//go:embed all:nginx all:supervisord all:openbox all:accounts all:chromium all:fonts all:skill
//go:embed policy/browser-shell.policy.json mcp-hub.json.template
var FS embed.FS
