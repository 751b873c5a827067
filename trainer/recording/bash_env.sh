# Read by every bash of a recording before its script: it tells fd 250 what the script does, and changes nothing of it.
unset EPOCHSECONDS EPOCHREALTIME
EPOCHSECONDS=$MOE_RECORD_TIME EPOCHREALTIME=$MOE_RECORD_TIME.123456 RANDOM=$MOE_RECORD_SEED
command_not_found_handle() { "/.moe-autotune-absent/$1" "${@:2}"; }
__moe_words() { (set +eux; eval "printf '%q ' $1") 2>/dev/null; }
__moe_tell() { local IFS=; printf '%s\t%s\t%s\t%s\0' "$1" "$BASHPID" "$2" "$3" >&250; } 2>/dev/null
__moe() { # number of the script's arguments, line
  local IFS=$' \t\n' __moe_c=$BASH_COMMAND __moe_r=$BASH_COMMAND __moe_n __moe_w
  __moe_tell at "$2" "${__moe_c:0:200}"
  if [[ ${__moe_t-} ]]; then __moe_t=; [[ -e /.moe-autotune-test/0 ]] || :; fi
  case $__moe_c in
    source\ * | .\ *)
      __moe_w=$(__moe_words "${__moe_c#* }")
      __moe_tell setup "$2" "source $__moe_w"
      eval "__moe_n=${__moe_w%% *}"
      [[ -e $__moe_n ]] || [[ -e /.moe-autotune-source/$__moe_n ]] || __moe_tell absent "$2" "$__moe_n" ;;
    module\ * | ml\ * | conda\ * | mamba\ * | micromamba\ * | spack\ * | pyenv\ * | ulimit\ * | cd\ * | pushd\ * | popd*)
      __moe_tell setup "$2" "$(__moe_words "$__moe_c")" ;;
    eval*conda* | eval*mamba* | eval*modulecmd* | eval*spack* | eval*pyenv* | eval*direnv*) __moe_tell setup "$2" "$__moe_c" ;;
    '[ '* | '[[ '* | test\ *) [[ $__moe_c != *" -"[defhrswxLSN]" "* ]] || { __moe_t=1; [[ -e /.moe-autotune-test/$2 ]] || :; } ;;
  esac
  while [[ $__moe_r == *\'*\'* ]]; do __moe_r=${__moe_r%%\'*}${__moe_r#*\'*\'}; done
  while [[ $__moe_r == *\$* ]]; do
    __moe_r=${__moe_r#*\$}
    __moe_w=${__moe_r#\{}
    __moe_n=${__moe_w%%[!A-Za-z0-9_]*}
    case $__moe_n:$__moe_r in
      :[@*]* | :\{[@*]*) [[ $1 != 0 || ${#FUNCNAME[@]} != 1 ]] || __moe_tell empty "$2" @ ;;
      :* | 0:* | [0-9]*[A-Za-z_]*:*) ;;
      [0-9]*) ((__moe_n <= $1)) || [[ ${#FUNCNAME[@]} != 1 || $__moe_r == "{$__moe_n"[:=?+-]* ]] || __moe_tell empty "$2" "$__moe_n" ;;
      *) [[ -v $__moe_n || $__moe_r == "{$__moe_n"[:=?+-]* ]] || declare -p "$__moe_n" &>/dev/null || __moe_tell empty "$2" "$__moe_n" ;;
    esac
  done
  return 0
}
set -T
trap '__moe "$#" "$LINENO" "$_"' DEBUG
