#!/bin/bash
# Stand-in for line A, second half of the start.
set -e

log() { echo "$(date '+%F %T') INFO $*"; }

getent group "$USER" >/dev/null || groupadd --gid "$USER_GID" "$USER"
id -u "$USER" >/dev/null 2>&1 || useradd --uid "$USER_UID" --gid "$USER_GID" --shell /bin/bash --create-home "$USER"

mkdir -p /tmp/.X11-unix
chmod 1777 /tmp/.X11-unix
chown "$USER" /tmp/.X11-unix/

mkdir -p "$LOG_DIR" "$XDG_RUNTIME_DIR"
chmod 1777 "$LOG_DIR"
chown "$USER" "$LOG_DIR" "$XDG_RUNTIME_DIR"

mkdir -p /var/lib/nginx
chmod 1777 /var/lib/nginx
chown nobody /var/lib/nginx

su "$USER" -c '
  touch "$HOME/.Xauthority" && \
  mkdir -p "$HOME/.config/browser/Default" && \
  cp /opt/gem/preferences.json "$HOME/.config/browser/Default/Preferences"
'

DOH="$(echo -n "$DNS_OVER_HTTPS_TEMPLATES" | xargs)"
if [ -n "$DOH" ]; then
  printf '{"DnsOverHttpsMode": "secure", "DnsOverHttpsTemplates": "%s"}\n' "$DOH" >/etc/browser/policies/managed/dns_over_https.json
fi

# A blank key means no authentication.
if [ -n "$(echo -n "$JWT_PUBLIC_KEY" | xargs)" ]; then
  log "auth on"
  envsubst '${PUBLIC_PORT} ${AUTH_BACKEND_PORT} ${GEM_SERVER_PORT}' </opt/gem/nginx-server-with-auth.conf >/opt/gem/nginx-server-active.conf
else
  log "auth off"
  envsubst '${PUBLIC_PORT}' </opt/gem/nginx-server-without-auth.conf >/opt/gem/nginx-server-active.conf
fi

# Rendered anew at every start, so a missing one stops the boot.
envsubst '${BROWSER_REMOTE_DEBUGGING_PORT}' </opt/gem/nginx.legacy.conf >/opt/gem/nginx/legacy.conf
envsubst '${GEM_SERVER_PORT}' </opt/gem/nginx.srv.conf >/opt/gem/nginx/srv.conf
envsubst '${WEBSOCKET_PROXY_PORT}' </opt/gem/nginx.vnc.conf >/opt/gem/nginx/vnc.conf

if [ ! -f /opt/gem/mcp.disabled ]; then
  cp /opt/gem/supervisord.mcp.conf /opt/gem/supervisord/mcp.conf
  envsubst '${MCP_SERVER_PORT}' </opt/gem/nginx.mcp.conf >/opt/gem/nginx/mcp.conf
fi

exec /usr/bin/supervisord -n -c /opt/gem/supervisord.conf
