# source tools/env.sh: the Python of .venv for this shell, and the libraries of the SDK that `make configure` has noted.
# Works from any folder, in bash and zsh.
_tair_root=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)
if [ -d "$_tair_root/.venv/bin" ]; then
    export PATH="$_tair_root/.venv/bin:$PATH"
else
    echo "tools/env.sh: there is no .venv yet: run make setup" >&2
fi
_tair_sdk=$(sed -n 's/^ASCEND_SDK_PATH=//p' "$_tair_root/build/config.env" 2>/dev/null)
if [ -n "$_tair_sdk" ]; then
    export LD_LIBRARY_PATH="$_tair_sdk/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
unset _tair_root _tair_sdk
