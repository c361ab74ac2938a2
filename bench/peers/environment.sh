# Sourced by the scripts of this folder. `run_with_peers SCRIPT REQUIREMENTS... -- ARGUMENTS...` runs
# SCRIPT in Python with what the files REQUIREMENTS list installed in a virtual environment of its own
# (build/peers, or $PENSTOCK_PEERS; some GiB), and with the command `penstock` built.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${PENSTOCK_PEERS:-$root/build/peers}

run_with_peers() {
  local script=$1
  shift
  while [[ $1 != -- ]]; do
    local list=$here/$1 stamp=$venv/${1%.txt}.installed
    if [[ ! -e $stamp || $list -nt $stamp ]]; then
      python3 -m venv "$venv" || { echo "$script: needs the package python3-venv" >&2; exit 2; }
      "$venv/bin/pip" install --quiet --requirement "$list" >&2
      touch "$stamp"
    fi
    shift
  done
  shift
  if [[ ! -x $root/build/bin/penstock && -z ${PENSTOCK:-} ]]; then "$root/scripts/build" penstock; fi
  export PENSTOCK=${PENSTOCK:-$root/build/bin/penstock}
  exec "$venv/bin/python" "$here/$script" "$@"
}
