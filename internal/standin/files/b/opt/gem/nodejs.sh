# Sourced by login shells (as /etc/profile.d/nodejs.sh) and by run.sh.
export FNM_DIR=/opt/fnm
export FNM_MULTISHELL_PATH="$HOME/.fnm_shell"
if [ ! -L "$FNM_MULTISHELL_PATH" ]; then
  rm -rf "$FNM_MULTISHELL_PATH"
  ln -sf /opt/fnm/aliases/default "$FNM_MULTISHELL_PATH"
fi
export NPM_CONFIG_PREFIX="$HOME/.npm-global"
export AIO_SHIM_BIN="${AIO_SHIM_BIN:-/opt/gem/bin}"
if [ -z "$_FNM_ENV_SET" ]; then
  export _FNM_ENV_SET=1
  export PATH="$AIO_SHIM_BIN:$FNM_MULTISHELL_PATH/bin:$NPM_CONFIG_PREFIX/bin:$HOME/.local/bin:$PATH"
fi
