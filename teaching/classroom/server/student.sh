#!/bin/sh
# Start one student's server: bring the student's own copy of the course up to date, then run JupyterLab on it.
# gitpuller keeps what the student has changed: where both changed the same lines, the student's stay.
set -u
export PATH="$CLASS_BIN:$PATH"
cd "${HOME:-.}" || exit 1
for folder in "$CLASS_COURSE" "$CLASS_COURSE/.git"; do # git copies another user's folder only if it is named here
  git config --global --get-all safe.directory | grep -qxF "$folder" ||
    git config --global --add safe.directory "$folder"
done
gitpuller "$CLASS_COURSE" "" llama-notebooks || # "": the branch that is checked out there
  echo "The course could not be brought up to date; the student's copy stays as it is." >&2
if [ -n "${CLASS_MEMORY:-}" ]; then # where no spawner limits memory: a limit for each process, in KiB
  ulimit -d "$(numfmt --from=iec "$CLASS_MEMORY" | awk '{ print int($1 / 1024) }')"
fi
exec jupyterhub-singleuser "$@"
