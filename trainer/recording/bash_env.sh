# Read by every bash of a recording before its script: it tells fd 250 what the script does, and changes nothing of it.
exec 249>/dev/null
BASH_XTRACEFD=249
unset EPOCHSECONDS EPOCHREALTIME
EPOCHSECONDS=$MOE_RECORD_TIME EPOCHREALTIME=$MOE_RECORD_TIME.123456 RANDOM=$MOE_RECORD_SEED
command_not_found_handle() { "/.moe-autotune-absent/$1" "${@:2}"; }
__moe_words() {
  local __moe_x=$1
  shift
  (set +eux; eval "printf '%q ' $__moe_x") 2>/dev/null
}
__moe_tell() { printf '%s\t%s\t%s\t%s\0' "$1" "$BASHPID" "$2" "$3" >&250; }
__moe() { # line, the script's arguments, $_
  [[ ! ${__moe_busy-} && ${BASH_SOURCE[1]-} != "${BASH_SOURCE[0]}" ]] || return 0
  local __moe_busy=1 __moe_l=$1
  shift
  set -- "${@:1:$#-1}"
  local IFS=$' \t\n' __moe_c=$BASH_COMMAND __moe_r=$BASH_COMMAND __moe_n __moe_w
  __moe_tell at "$__moe_l" "${__moe_c:0:2000}"
  for __moe_n in ${MOE_RECORD_SET-}; do
    __moe_w=MOE_RECORD_SET_$__moe_n
    [[ ${!__moe_n-} == "${!__moe_w}" ]] || printf -v "$__moe_n" %s "${!__moe_w}"
  done
  if [[ ${__moe_t-} ]]; then __moe_t=; [[ -e /.moe-autotune-test/0 ]] || :; fi
  case $__moe_c in
    source\ \<\(* | .\ \<\(* | source\ /dev/* | .\ /dev/*) ;; # a pipe can be read once
    source\ * | .\ *)
      __moe_w=$(__moe_words "${__moe_c#* }" "$@") || :
      __moe_tell setup "$__moe_l" "source $__moe_w"
      eval "__moe_n=${__moe_w%% *}"
      [[ -e $__moe_n ]] || [[ -e /.moe-autotune-source/$__moe_n ]] || __moe_tell absent "$__moe_l" "$__moe_n" ;;
    exec\ *)
      __moe_w=$(__moe_words "${__moe_c#exec }" "$@") || :
      eval "__moe_n=${__moe_w%% *}"
      [[ -z $__moe_n || $__moe_n == [-\<\>]* ]] || [[ $(type -P "$__moe_n") ]] || hash -p "/.moe-autotune-absent/$__moe_n" "$__moe_n" ;;
    *getopts\ *) [[ $# != 0 ]] || __moe_tell empty "$__moe_l" @ ;;
    module\ * | ml\ * | conda\ * | mamba\ * | micromamba\ * | spack\ * | pyenv\ * | ulimit\ * | cd\ * | pushd\ * | popd*)
      __moe_tell setup "$__moe_l" "$(__moe_words "$__moe_c" "$@")" ;;
    eval*conda* | eval*mamba* | eval*modulecmd* | eval*spack* | eval*pyenv* | eval*direnv*) __moe_tell setup "$__moe_l" "$__moe_c" ;;
    '[ '* | '[[ '* | test\ *) [[ $__moe_c != *" -"[defhrswxLSN]" "* ]] || {
      __moe_t=1 __moe_w=
      [[ $__moe_c != *" -d "* ]] || __moe_w=/d
      [[ -e /.moe-autotune-test/$__moe_l$__moe_w ]] || :
    } ;;
  esac
  __moe_r=${__moe_r%%<<*}
  while [[ $__moe_r == *\'*\'* ]]; do __moe_r=${__moe_r%%\'*}${__moe_r#*\'*\'}; done
  while [[ $__moe_r == *\$* ]]; do
    __moe_r=${__moe_r#*\$}
    __moe_w=${__moe_r#\{}
    __moe_n=${__moe_w%%[!A-Za-z0-9_]*}
    case $__moe_n:$__moe_r in
      :[@*#]* | :\{[@*]*) [[ $# != 0 || ${FUNCNAME[1]-main} != @(main|source) ]] || __moe_tell empty "$__moe_l" @ ;;
      :* | 0:* | [0-9]*[A-Za-z_]*:*) ;;
      [0-9]*) ((__moe_n <= $#)) || [[ ${FUNCNAME[1]-main} != @(main|source) || $__moe_r == "{$__moe_n"[:=?+-]* ]] || __moe_tell empty "$__moe_l" "$__moe_n" ;;
      *) [[ -v $__moe_n || $__moe_r == "{$__moe_n"[:=?+-]* ]] || declare -p "$__moe_n" &>/dev/null || __moe_tell empty "$__moe_l" "$__moe_n" ;;
    esac
  done
  return 0
}
set -T
trap '__moe "$LINENO" "$@" "$_"' DEBUG
