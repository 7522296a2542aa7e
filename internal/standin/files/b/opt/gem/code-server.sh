#!/bin/bash
set -e
exec /usr/bin/code-server \
  --bind-addr="127.0.0.1:$CODE_SERVER_PORT" --auth=none \
  --trusted-origins "*" --disable-update-check --disable-telemetry --disable-workspace-trust \
  --user-data-dir="/home/$USER/.config/code-server/vscode" "${WORKSPACE:-/home/$USER}"
