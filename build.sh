#!/usr/bin/env bash
# The switches of older build instructions; each is a make target. Without a switch: this text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
usage() {
  cat <<'TEXT'
usage: build.sh [-c] [-i] [-u] [-s] [-j[N]] [-v] [-g PATH] [-h]
  -c        make wheels    (wheels in dist/, and in output/ as links)
  -i        make install   (builds, then installs into the Python of `configure`)
  -u        make unit
  -s        make system
  -j[N]     N processes of the C++ compiler
  -v        print the commands that make runs
  -g PATH   the C++ compiler
  -h        this text
TEXT
}
targets=() output="" flags=(--no-print-directory)
while getopts "ciusj::vg:h" switch; do
  case "$switch" in
    c) targets+=(wheels); output=yes ;;
    i) targets+=(install) ;;
    u) targets+=(unit) ;;
    s) targets+=(system) ;;
    j) export CMAKE_BUILD_PARALLEL_LEVEL="${OPTARG:-8}" ;;
    v) flags+=(--trace) ;;
    g) [ -x "$OPTARG" ] || { echo "build.sh: -g $OPTARG is not a program" >&2; exit 2; }; export CXX="$OPTARG" ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[ "${#targets[@]}" -gt 0 ] || { usage; exit 0; }
make "${flags[@]}" "${targets[@]}"
if [ -n "$output" ]; then mkdir -p output && ln -sf ../dist/*.whl output/; fi
