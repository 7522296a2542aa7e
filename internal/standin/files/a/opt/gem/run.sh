#!/usr/bin/env bash
# Stand-in for line A: the same order and the same holes as the original, in fewer words.
set -e

autostart() { if [ "$1" != "true" ]; then echo true; else echo false; fi; }
AUTOSTART_JUPYTER=$(autostart "$DISABLE_JUPYTER")
AUTOSTART_CODE_SERVER=$(autostart "$DISABLE_CODE_SERVER")
export AUTOSTART_JUPYTER AUTOSTART_CODE_SERVER

# The user is made at run time, and gets sudo again at every start.
getent group "$USER" >/dev/null || groupadd --gid "$USER_GID" "$USER"
id -u "$USER" >/dev/null 2>&1 || useradd --uid "$USER_UID" --gid "$USER" --shell /bin/bash --create-home "$USER"
if [ -w /etc/sudoers.d ]; then
  echo "$USER ALL=(ALL) NOPASSWD:ALL" >>"/etc/sudoers.d/$USER"
  chmod 440 "/etc/sudoers.d/$USER"
else
  echo "Warning: cannot write sudoers"
fi

chown -R "$USER:$USER" /opt/jupyter

# No set -e in here: only the last command's status counts.
su - "$USER" -c 'bash -s' <<'USERSETUP'
mkdir -p ~/.npm-global/lib
cp -f /opt/gem/bashrc ~/.bashrc
mkdir -p ~/.config/code-server ~/.local/share/code-server && chmod -R 755 ~/.local/share/code-server/
cp -rf /opt/gem/vscode ~/.config/code-server/vscode
cp -rf /opt/gem/jupyter ~/.jupyter
mkdir -p ~/.config/matplotlib
cp -f /opt/gem/matplotlibrc ~/.config/matplotlib/matplotlibrc
USERSETUP

# Each template is rendered once and then deleted.
N=/opt/gem/nginx
if [ -f "$N/nginx.python_srv.conf" ]; then
  envsubst '${MCP_HUB_PORT} ${SANDBOX_SRV_PORT}' <"$N/nginx.python_srv.conf" >"$N/python_srv.conf" && rm -f "$N/nginx.python_srv.conf"
fi
if [ -f "$N/nginx.mcp_hub.conf" ]; then
  envsubst '${MCP_HUB_PORT}' <"$N/nginx.mcp_hub.conf" >"$N/mcp_hub.conf" && rm -f "$N/nginx.mcp_hub.conf"
  envsubst '${SANDBOX_SRV_PORT} ${MCP_SERVER_BROWSER_PORT} ${BROWSER_REMOTE_DEBUGGING_PORT}' \
    </opt/gem/mcp-hub.json.template >/opt/gem/mcp-hub.json && rm -f /opt/gem/mcp-hub.json.template
fi
if [ -f "$N/nginx.jupyter_lab.conf" ]; then
  envsubst '${JUPYTER_LAB_PORT}' <"$N/nginx.jupyter_lab.conf" >"$N/jupyter_lab.conf" && rm -f "$N/nginx.jupyter_lab.conf"
fi
if [ -f "$N/nginx.code_server.conf" ]; then
  envsubst '${CODE_SERVER_PORT}' <"$N/nginx.code_server.conf" >"$N/code_server.conf" && rm -f "$N/nginx.code_server.conf"
fi

export IMAGE_VERSION=$(cat /etc/aio_version)
export OTEL_SDK_DISABLED=true
export NPM_CONFIG_PREFIX=/home/$USER/.npm-global
export PATH=$NPM_CONFIG_PREFIX/bin:/home/$USER/.local/bin:$PATH
export BROWSER_NO_SANDBOX=${BROWSER_NO_SANDBOX:-"--no-sandbox"}
export BROWSER_EXTRA_ARGS="${BROWSER_NO_SANDBOX} --lang=en-US --time-zone-for-testing=${TZ} --window-position=0,0 --window-size=${DISPLAY_WIDTH},${DISPLAY_HEIGHT} --homepage ${HOMEPAGE:-} ${BROWSER_EXTRA_ARGS}"
if [ -n "$BROWSER_USER_AGENT" ]; then
  export BROWSER_EXTRA_ARGS=" --user-agent=\"${BROWSER_USER_AGENT}\" ${BROWSER_EXTRA_ARGS}"
fi

envsubst '${PUBLIC_PORT}' </opt/gem/nginx-server-port-proxy.conf.template >/opt/gem/nginx-server-port-proxy.conf

PROXY_SERVER="$(echo -n "$PROXY_SERVER" | xargs)"
if [ -n "$PROXY_SERVER" ]; then
  PROXY_SERVER=${PROXY_SERVER#http://}
  PROXY_SERVER=${PROXY_SERVER#https://}
  if [ ! -f /opt/gem/tinyproxy/base.conf ]; then
    echo "ERROR: /opt/gem/tinyproxy/base.conf is missing" >&2
    exit 1
  fi
  envsubst '${TINYPROXY_PORT}' </opt/gem/tinyproxy/base.conf >/etc/tinyproxy.conf
  if [ "$PROXY_SERVER" != "true" ]; then
    echo "Upstream http $PROXY_SERVER" >>/etc/tinyproxy.conf
  fi
  export BROWSER_EXTRA_ARGS="${BROWSER_EXTRA_ARGS} --proxy-server=http://127.0.0.1:${TINYPROXY_PORT}"
else
  rm -f /opt/gem/supervisord/supervisord.tinyproxy.conf
fi

if [ -f /opt/aio/index.html.template ]; then
  envsubst '${DISABLE_JUPYTER},${DISABLE_CODE_SERVER}' </opt/aio/index.html.template >/opt/aio/index.html
  rm -rf /opt/aio/index.html.template
fi

echo "AIO sandbox stand-in ${IMAGE_VERSION}: http://localhost:${PUBLIC_PORT}"
exec /opt/gem/entrypoint.sh
