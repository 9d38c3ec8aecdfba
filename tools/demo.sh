#!/usr/bin/env bash
# Sets everything up and lets the model answer.
#
#   ./tools/demo.sh                                    asks why the sky is blue
#   ./tools/demo.sh "What is a binary search?"         asks something else
#   ./tools/demo.sh "Hello" --backend wgpu             passes options on to `tlite generate`
set -euo pipefail

case ${1:-} in
-h | --help)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac
prompt="Why is the sky blue?"
case ${1:-} in
"") [ $# -eq 0 ] || shift ;;
--*) ;;
*)
    prompt=$1
    shift
    ;;
esac

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_drivers
setup_rust
build_tlite
prepare_model
say "$prompt"
exec "$TLITE" generate "$MODEL_DIR/e0m4" --prompt "$prompt" "$@"
