#!/bin/sh
# Start one student's server: bring the student's own copy of the course up to date, then run JupyterLab on it.
# gitpuller keeps what the student has changed: where both changed the same lines, the student's stay.
set -u
export PATH="$CLASS_BIN:$PATH"
cd "${HOME:-.}" || exit 1
gitpuller "$CLASS_COURSE" "${CLASS_BRANCH:-main}" llama-notebooks ||
  echo "The course could not be brought up to date; the student's copy stays as it is." >&2
if [ -n "${CLASS_MEMORY:-}" ]; then # where no spawner limits memory: a limit for each process, in KiB
  ulimit -d "$(numfmt --from=iec "$CLASS_MEMORY" | awk '{ print int($1 / 1024) }')"
fi
exec jupyterhub-singleuser "$@"
