#!/bin/bash
# Stand-in (a guess): writes the opencode settings into the user's home.
set -e
tmp_config=$(mktemp)
cp /opt/gem/opencode/config.json "$tmp_config"
chown "$USER:$USER" "$tmp_config"
mkdir -p "/home/$USER/.config/opencode"
mv "$tmp_config" "/home/$USER/.config/opencode/config.json"
