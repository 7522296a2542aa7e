#!/bin/bash
# Stand-in (a guess): writes the Claude Code settings into the user's home.
set -e
tmp_config=$(mktemp)
echo '{"env": {}}' >"$tmp_config"
chown "$USER:$USER" "$tmp_config"
mkdir -p "/home/$USER/.claude"
mv "$tmp_config" "/home/$USER/.claude/settings.json"
