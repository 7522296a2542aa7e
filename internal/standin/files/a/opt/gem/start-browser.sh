#!/bin/bash
set -e
# The stand-in waits for the X server: on a slow machine supervisord would give up after its three tries.
display=${DISPLAY#:}
for _ in $(seq 300); do
  [ -S "/tmp/.X11-unix/X${display%%.*}" ] && break
  sleep 0.2
done
# Any Chrome flag can come in by these two variables.
readarray -t cmd_args < <(xargs -n1 printf '%s\n' <<<"$BROWSER_COMMANDLINE_ARGS")
readarray -t extra_args < <(xargs -n1 printf '%s\n' <<<"$BROWSER_EXTRA_ARGS")
exec "$BROWSER_EXECUTABLE_PATH" --user-data-dir="/home/$USER/.config/browser" "${cmd_args[@]}" "${extra_args[@]}"
