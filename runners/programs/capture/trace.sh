# Read before each script of bash: its commands with variables that are not set, and those that failed.
[ -n "$MESHTUNE_CAPTURE_ENV" ] && . "$MESHTUNE_CAPTURE_ENV"
_meshtune_say() { printf '%s\0' "$@" >> "FOLDER/records/$BASHPID.trace"; }
_meshtune_look() {
    local __rest=$4 __name __unset=
    while [[ $__rest == *'$'* ]]; do
        __rest=${__rest#*'$'}; __name=${__rest#'{'}; __name=${__name#[#!]}
        __name=${__name%%[^A-Za-z0-9_]*}
        [[ $__name == [A-Za-z_]* ]] && { declare -p "$__name" || __unset+="$__name "; } &> /dev/null
    done
    [[ $__unset ]] && _meshtune_say unset "$__unset" "$1" "$2" "$3" "$4"
    return 0
}
# Where a cluster has them and this machine has not, the script goes on without.
for __tool in module ml spack; do
    type "$__tool" &> /dev/null || eval "$__tool() {
        _meshtune_say failed 127 \"\${BASH_SOURCE[1]}\" \"\${BASH_LINENO[0]}\" '' \"$__tool \$*\"
    }"
done
set -o functrace -o errtrace
# 2>: what `set -x` shows is the script's alone.
trap '{ _meshtune_look "${BASH_SOURCE[0]}" "$LINENO" "$BASH_SUBSHELL" "$BASH_COMMAND"; } 2> /dev/null' DEBUG
trap '{ _meshtune_say failed "$?" "${BASH_SOURCE[0]}" "$LINENO" "$-" "$BASH_COMMAND"; } 2> /dev/null' ERR
trap '{ _meshtune_say ended "$?" "${BASH_SOURCE[0]}" "" "" "$BASH_COMMAND"; } 2> /dev/null' EXIT
