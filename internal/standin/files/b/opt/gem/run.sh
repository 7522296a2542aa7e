#!/bin/bash
# Stand-in for line B: one script from start to supervisord, the same order and holes as the original.
set -e

log() { echo "$(date '+%F %T') INFO $*"; }

run_hook() { # NAME COMMANDS: whatever the environment says, as root
  [ -z "$(echo "$2" | tr -d '[:space:]')" ] && return 0
  log "hook $1"
  if [ "$RUN_HOOKS_STRICT" = "true" ]; then
    bash -c "$2"
  else
    bash -c "$2" || log "WARNING: hook $1 left with $?"
  fi
}

on_unless() { if [ "$1" != "true" ]; then echo true; else echo false; fi; }
AUTOSTART_JUPYTER=$(on_unless "$DISABLE_JUPYTER")
AUTOSTART_CODE_SERVER=$(on_unless "$DISABLE_CODE_SERVER")
AUTOSTART_BROWSER=$(on_unless "$DISABLE_BROWSER")
AUTOSTART_VNC=$(on_unless "$DISABLE_VNC")
AUTOSTART_MCP_BROWSER=false
[ "$DISABLE_MCP_BROWSER" != "true" ] && [ "$DISABLE_BROWSER" != "true" ] && AUTOSTART_MCP_BROWSER=true
AUTOSTART_CJK_IME=false
[ "$ENABLE_CJK_IME" = "true" ] && [ "$DISABLE_VNC" != "true" ] && [ "$DISABLE_BROWSER" != "true" ] && AUTOSTART_CJK_IME=true
export AUTOSTART_JUPYTER AUTOSTART_CODE_SERVER AUTOSTART_BROWSER AUTOSTART_VNC AUTOSTART_MCP_BROWSER AUTOSTART_CJK_IME

export NODE_VERSION=${NODE_VERSION:-${NODE_CODE_EXEC_VERSION:-node22}}
export NODEJS_REPL_PORT_20=${NODEJS_REPL_PORT_20:-8192}
export NODEJS_REPL_PORT_22=${NODEJS_REPL_PORT_22:-8092}
export NODEJS_REPL_PORT_24=${NODEJS_REPL_PORT_24:-8392}
for v in 20 22 24; do
  state=false
  [ "$DISABLE_NODEJS_REPL" != "true" ] && [ "$NODE_VERSION" = "node$v" ] && state=true
  export "AUTOSTART_NODEJS_REPL_$v=$state"
done
export LOG_STDOUT_SERVER="${LOG_STDOUT_SERVER:-false}"

# First of all, before the user exists.
run_hook RUN_HOOK_INIT "$RUN_HOOK_INIT"

getent group "$USER" >/dev/null || groupadd --gid "$USER_GID" "$USER"
id -u "$USER" >/dev/null 2>&1 || useradd --uid "$USER_UID" --gid "$USER_GID" --shell /bin/bash --create-home "$USER"
export WORKSPACE="${WORKSPACE:-/home/$USER}"
export BROWSER_DOWNLOAD_DIR_EFFECTIVE="${BROWSER_DOWNLOAD_DIR:-$WORKSPACE/Downloads}"
if [ -w /etc/sudoers.d ]; then
  echo "$USER ALL=(ALL) NOPASSWD:ALL" >>"/etc/sudoers.d/$USER"
  chmod 440 "/etc/sudoers.d/$USER"
else
  log "Warning: cannot write sudoers"
fi
chown "$USER:$USER" "/home/$USER"

rm -rf /tmp/.X11-unix
mkdir -p /tmp/.X11-unix
chmod 1777 /tmp/.X11-unix
mkdir -p "$LOG_DIR"
chmod 1777 "$LOG_DIR"
chown "$USER" /tmp/.X11-unix/ "$LOG_DIR"
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$USER_UID}"
mkdir -p "$XDG_RUNTIME_DIR"
chown "$USER:$USER" "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
export AIO_DBUS_SESSION_SOCKET="$XDG_RUNTIME_DIR/dbus-session-bus"
mkdir -p "$WORKSPACE" "$BROWSER_DOWNLOAD_DIR_EFFECTIVE"
chown "$USER:$USER" "$BROWSER_DOWNLOAD_DIR_EFFECTIVE"
mkdir -p /var/lib/aio-sandbox
chown "$USER:$USER" /var/lib/aio-sandbox
mkdir -p /var/lib/aio-sandbox/nginx
chown nobody:root /var/lib/aio-sandbox/nginx
for temp in body proxy fastcgi scgi uwsgi; do
  mkdir -p "/var/lib/aio-sandbox/nginx/$temp"
  chown nobody:root "/var/lib/aio-sandbox/nginx/$temp"
  chmod 700 "/var/lib/aio-sandbox/nginx/$temp"
done
chown -R "$USER:$USER" /opt/jupyter

# The user's files and the configuration are set up side by side.
(
  su - "$USER" -c "BROWSER_LANG=${BROWSER_LANG:-en-US} AIO_CLI_SKILL_ENABLED=${AIO_CLI_SKILL_ENABLED:-false} bash -s" <<'USERSETUP'
mkdir -p ~/.npm-global/lib/node_modules
cp -f /opt/gem/bashrc ~/.bashrc
mkdir -p ~/.config/code-server ~/.local/share/code-server && chmod -R 755 ~/.local/share/code-server/
cp -rf /opt/gem/vscode ~/.config/code-server/vscode
cp -rf /opt/gem/jupyter ~/.jupyter
mkdir -p ~/.config/matplotlib
cp -f /opt/gem/matplotlibrc ~/.config/matplotlib/matplotlibrc
if [ -d /opt/gem/fcitx5 ] && [ ! -f ~/.config/fcitx5/profile ]; then
  mkdir -p ~/.config/fcitx5
  cp -r /opt/gem/fcitx5/* ~/.config/fcitx5/
fi
if [ -d /opt/aio-staged-configs ]; then
  rsync -a /opt/aio-staged-configs/ ~/
fi
if [ "$AIO_CLI_SKILL_ENABLED" = "true" ] && [ -d /opt/skills ]; then
  mkdir -p ~/.agents
  cp -rf /opt/skills ~/.agents/skills
fi
touch ~/.Xauthority
mkdir -p ~/.config/browser/Default
cp /opt/gem/preferences.json ~/.config/browser/Default/Preferences
jq --arg l "$BROWSER_LANG" '.intl.selected_languages = $l' ~/.config/browser/Default/Preferences >~/.config/browser/Default/Preferences.tmp &&
  mv ~/.config/browser/Default/Preferences.tmp ~/.config/browser/Default/Preferences
USERSETUP
) &
USER_JOB=$!

(
  P=/etc/browser/policies/managed
  DOH="$(echo -n "$DNS_OVER_HTTPS_TEMPLATES" | xargs)"
  if [ -n "$DOH" ]; then
    printf '{"DnsOverHttpsMode": "secure", "DnsOverHttpsTemplates": "%s"}\n' "$DOH" >"$P/dns_over_https.json"
  fi
  if [ -n "$BROWSER_URL_BLOCKLIST$BROWSER_URL_ALLOWLIST" ]; then
    jq -n --arg b "$BROWSER_URL_BLOCKLIST" --arg a "$BROWSER_URL_ALLOWLIST" \
      '{URLBlocklist: ($b | split(",")), URLAllowlist: ($a | split(","))}' >"$P/url_filter.json"
  fi

  RUNTIME_LISTEN=""
  if [ "$FAAS_SANDBOX_RUNTIME_INJECTION_ENABLE_SANDBOXD" = "true" ]; then
    PUBLIC_LISTEN_IPV4=127.0.0.1
    PUBLIC_LISTEN_IPV6="[::1]"
    if [ -n "$_BYTEFAAS_RUNTIME_PORT" ] && [ "$_BYTEFAAS_RUNTIME_PORT" != "$PUBLIC_PORT" ]; then
      RUNTIME_LISTEN="listen $PUBLIC_LISTEN_IPV4:$_BYTEFAAS_RUNTIME_PORT; listen $PUBLIC_LISTEN_IPV6:$_BYTEFAAS_RUNTIME_PORT;"
    fi
  fi
  export RUNTIME_LISTEN
  export PUBLIC_LISTEN_IPV4="${PUBLIC_LISTEN_IPV4:-0.0.0.0}"
  export PUBLIC_LISTEN_IPV6="${PUBLIC_LISTEN_IPV6:-[::]}"
  export NGINX_PROXY_CONNECT_TIMEOUT="${NGINX_PROXY_CONNECT_TIMEOUT:-5s}"
  export NGINX_API_IDLE_TIMEOUT="${NGINX_API_IDLE_TIMEOUT:-86400s}"
  export NGINX_SESSION_IDLE_TIMEOUT="${NGINX_SESSION_IDLE_TIMEOUT:-86400s}"

  # Blank keys mean no authentication.
  if [ -n "$(echo -n "$JWT_PUBLIC_KEY$SANDBOX_API_KEY" | xargs)" ]; then
    envsubst '${PUBLIC_PORT} ${AUTH_BACKEND_PORT} ${SANDBOX_SRV_PORT} ${PUBLIC_LISTEN_IPV4} ${PUBLIC_LISTEN_IPV6} ${RUNTIME_LISTEN}' \
      </opt/gem/nginx-server-with-auth.conf >/opt/gem/nginx-server-active.conf
  else
    envsubst '${PUBLIC_PORT} ${PUBLIC_LISTEN_IPV4} ${PUBLIC_LISTEN_IPV6} ${RUNTIME_LISTEN}' \
      </opt/gem/nginx-server-without-auth.conf >/opt/gem/nginx-server-active.conf
    echo "WARNING: SECURITY RISK - NO AUTHENTICATION CONFIGURED"
  fi

  # Rendered anew at every start, so a missing one stops the boot.
  envsubst '${BROWSER_REMOTE_DEBUGGING_PORT} ${NGINX_PROXY_CONNECT_TIMEOUT} ${NGINX_SESSION_IDLE_TIMEOUT}' \
    </opt/gem/nginx.legacy.conf >/opt/gem/nginx/legacy.conf
  envsubst '${WEBSOCKET_PROXY_PORT}' </opt/gem/nginx.vnc.conf >/opt/gem/nginx/vnc.conf

  # Rendered once, then the template is deleted.
  render() { # NAME VARIABLES
    local from="/opt/gem/nginx/nginx.$1.conf" to="/opt/gem/nginx/$1.conf"
    [ -f "$from" ] || return 0
    envsubst "$2" <"$from" >"$to" && rm -f "$from"
  }
  T='${NGINX_PROXY_CONNECT_TIMEOUT} ${NGINX_API_IDLE_TIMEOUT} ${NGINX_SESSION_IDLE_TIMEOUT}'
  render python_srv '${SANDBOX_SRV_PORT} '"$T"
  render opencode '${OPENCODE_PORT}'
  render gembrowser_compat '${SANDBOX_SRV_PORT} '"$T"
  if [ -f /opt/gem/nginx/nginx.mcp_hub.conf ]; then
    render mcp_hub '${SANDBOX_SRV_PORT}'
    if [ -n "$(echo "$EXTRA_MCP_SERVERS" | tr -d '[:space:]')" ]; then
      if ! echo "$EXTRA_MCP_SERVERS" | jq -e . >/dev/null 2>&1; then
        echo "ERROR: EXTRA_MCP_SERVERS is no JSON" >&2
        exit 1
      fi
      jq --argjson extra "$EXTRA_MCP_SERVERS" '.mcpServers = ((.mcpServers + $extra) | with_entries(select(.value != null)))' \
        /opt/gem/mcp-hub.json.template >/opt/gem/mcp-hub.json.template.tmp &&
        mv /opt/gem/mcp-hub.json.template.tmp /opt/gem/mcp-hub.json.template
    fi
    envsubst '${SANDBOX_SRV_PORT} ${MCP_SERVER_BROWSER_PORT} ${BROWSER_REMOTE_DEBUGGING_PORT}' \
      </opt/gem/mcp-hub.json.template >/opt/gem/mcp-hub.json && rm -f /opt/gem/mcp-hub.json.template
  fi
  render jupyter_lab '${JUPYTER_LAB_PORT}'
  render code_server '${CODE_SERVER_PORT}'
  render ui_browser '${BROWSER_REMOTE_DEBUGGING_PORT} '"$T"

  # Last command: without the template the whole set-up counts as failed.
  envsubst '${PUBLIC_PORT} ${PUBLIC_LISTEN_IPV4} ${PUBLIC_LISTEN_IPV6}' \
    </opt/gem/nginx-server-port-proxy.conf.template >/opt/gem/nginx-server-port-proxy.conf
) &
CONFIG_JOB=$!
wait "$USER_JOB" || { log "ERROR: user_setup failed"; exit 1; }
wait "$CONFIG_JOB" || { log "ERROR: config setup failed"; exit 1; }

IMAGE_VERSION=$(cat /etc/aio_version 2>/dev/null || echo unknown)
export IMAGE_VERSION
export AIO_USER="${AIO_USER:-$USER}"
export USER="$AIO_USER"
export HOME="/home/$USER"
. /etc/profile.d/nodejs.sh
export BROWSER_EXTRA_ARGS="$BROWSER_NO_SANDBOX --lang=${BROWSER_LANG:-en-US} --time-zone-for-testing=$TZ --homepage ${HOMEPAGE:-} $BROWSER_EXTRA_ARGS"

PROXY_SERVER="$(echo -n "$PROXY_SERVER" | xargs)"
if [ -n "$PROXY_SERVER" ]; then
  PROXY_SERVER=${PROXY_SERVER#http://}
  PROXY_SERVER=${PROXY_SERVER#https://}
  : >/opt/gem/gost-hosts.txt
  : >/opt/gem/gost-bypass.txt
  : >/opt/gem/nginx-proxy-map.conf
  echo "[]" >/var/lib/aio-sandbox/proxy-map.json
  echo "[]" >/var/lib/aio-sandbox/proxy-map-user-bypasses.json
  openssl req -x509 -newkey rsa:2048 -nodes -keyout /opt/gem/proxy-map-tls.key -out /opt/gem/proxy-map-tls.crt \
    -days 3650 -subj "/CN=AIO Sandbox Proxy Map" 2>/dev/null
  if [ -n "$PROXY_AUTH_CMD" ] && [ "$PROXY_SERVER" != "true" ]; then
    PROXY_SERVER="$(bash -c "$PROXY_AUTH_CMD" || true)@${PROXY_SERVER##*@}"
  fi
  {
    printf 'api:\n  addr: "127.0.0.1:18080"\n'
    printf 'services:\n  - name: browser-proxy\n    addr: "127.0.0.1:%s"\n' "${TINYPROXY_PORT:-8118}"
    [ "$PROXY_SERVER" = "true" ] || printf 'upstream: "%s"\n' "$PROXY_SERVER"
  } >/opt/gem/gost.yaml
  # PROXY_MAP: source>target[,source>target...], one nginx server per source.
  IFS=',' read -ra MAPS <<<"$PROXY_MAP"
  for map in "${MAPS[@]}"; do
    printf 'server {\n    listen 127.0.0.1:80;\n    listen 127.0.0.1:443 ssl;\n    ssl_certificate /opt/gem/proxy-map-tls.crt;\n    ssl_certificate_key /opt/gem/proxy-map-tls.key;\n    server_name %s;\n    location / {\n        proxy_pass http://%s;\n    }\n}\n' \
      "${map%%>*}" "${map##*>}" >>/opt/gem/nginx-proxy-map.conf
  done
  # The sandbox user may write what root's nginx includes.
  chown "$USER:$USER" /opt/gem/gost-hosts.txt /opt/gem/gost-bypass.txt /opt/gem/nginx-proxy-map.conf \
    /var/lib/aio-sandbox/proxy-map.json /var/lib/aio-sandbox/proxy-map-user-bypasses.json || true
  if [ -n "$PROXY_BYPASS_LIST" ]; then
    printf 'function FindProxyForURL(url, host) { return "PROXY 127.0.0.1:%s"; }\n' "${TINYPROXY_PORT:-8118}" >/opt/gem/proxy.pac
  fi
  export BROWSER_EXTRA_ARGS="$BROWSER_EXTRA_ARGS --proxy-server=http://127.0.0.1:${TINYPROXY_PORT:-8118}"
else
  rm -f /opt/gem/supervisord/supervisord.gost.conf
  touch /opt/gem/nginx-proxy-map.conf
fi

if [ -f /opt/aio/index.html.template ]; then
  envsubst '${DISABLE_JUPYTER},${DISABLE_CODE_SERVER}' </opt/aio/index.html.template >/opt/aio/index.html
  rm -rf /opt/aio/index.html.template
fi

echo "[]" >/var/lib/aio-sandbox/shutdown-hooks.json
chown "$USER:$USER" /var/lib/aio-sandbox/shutdown-hooks.json
run_hook RUN_HOOK_PRE_SERVICES "$RUN_HOOK_PRE_SERVICES"
if [ -n "$RUN_HOOK_POST_READY" ]; then
  (
    until nc -z localhost "${WAIT_PORTS%%,*}" >/dev/null 2>&1; do sleep 1; done
    run_hook RUN_HOOK_POST_READY "$RUN_HOOK_POST_READY"
  ) &
fi

log "AIO sandbox stand-in $IMAGE_VERSION: http://localhost:$PUBLIC_PORT"
exec /usr/bin/supervisord -n -c /opt/gem/supervisord.conf
