#!/usr/bin/env bash
# Builds tlite, downloads a small model (98 MB) and lets it answer a question.
#
#   ./tools/demo.sh                                    asks for the capital of France
#   ./tools/demo.sh "What is a binary search?"         asks something else
#   ./tools/demo.sh --yes                              installs a compiler without asking first
#   ./tools/demo.sh "Hello" --backend wgpu             passes options on to `tlite generate`
set -euo pipefail

prompt="What is the capital of France?"
ASK=1
options=()
for argument in "$@"; do
    case $argument in
    -h | --help)
        sed -n '2,8s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    --yes) YES=1 ;;
    *) options+=("$argument") ;;
    esac
done
case ${options[0]:-} in
"" | -*) ;;
*)
    prompt=${options[0]}
    options=("${options[@]:1}")
    ;;
esac

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_rust
build_tlite
fetch_demo_model
say "Asking: $prompt"
"$TLITE" generate "$DEMO_GGUF" --prompt "$prompt" --temperature 0 --max-tokens 200 ${options[@]+"${options[@]}"}
say "To try next:"
tlite=${TLITE#"$PWD"/} model=${DEMO_GGUF/#"$HOME"/\~}
printf '  %s\n' "$tlite chat $model" "$tlite bench $model" "$tlite --help" >&2
