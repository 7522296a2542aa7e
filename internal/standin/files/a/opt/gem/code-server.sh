#!/bin/bash
set -e
sleep 3
exec /usr/bin/code-server \
  --port "$CODE_SERVER_PORT" --bind-addr="0.0.0.0:$PUBLIC_PORT" --auth=none \
  --trusted-origins "*" --disable-update-check --disable-telemetry --disable-workspace-trust \
  --user-data-dir="/home/$USER/.config/code-server/vscode" "/home/$USER"
