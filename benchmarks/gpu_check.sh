#!/usr/bin/env bash
# Runs the GPU tests and the benchmarks on this machine and prints a short table last. It installs nothing.
#
#     benchmarks/gpu_check.sh [DIRECTORY [PART...]]
#
# DIRECTORY takes the logs and the raw numbers (default: a temporary one). PART is any of: tests launch cold warm wrapper
# mixed import_time triton_launch torch_op tune hopper_gemm (default: all, in that order). PYTHON names the interpreter;
# QUICK=1 measures fewer peers.
set -uo pipefail

logs=${1:-$(mktemp -d -t jitload-gpu-check-XXXXXX)}
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || exit 1
parts=("${@:2}")
[ ${#parts[@]} -gt 0 ] || parts=(tests launch cold warm wrapper mixed import_time triton_launch torch_op tune hopper_gemm)
python=${PYTHON:-python}

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONIOENCODING=utf-8

# Prints the command that makes a part, one word a line.
command_of() {
    case $1 in
        tests) printf '%s\n' -m pytest -m gpu -q ;;
        launch | cold | warm | wrapper | mixed) printf '%s\n' "benchmarks/$1.py" --json "$logs/$1.json" ${QUICK:+--quick} ;;
        import_time | triton_launch | torch_op | hopper_gemm) printf '%s\n' "benchmarks/$1.py" --json "$logs/$1.json" ;;
        tune) printf '%s\n' benchmarks/tune.py --exhaustive 0.5 ;;
        *) return 1 ;;
    esac
}

for part in "${parts[@]}"; do
    command_of "$part" >/dev/null || { echo "gpu_check.sh: no part '$part': tests launch cold warm wrapper mixed import_time triton_launch torch_op tune hopper_gemm" >&2; exit 2; }
done

table=()
failed=0
for part in "${parts[@]}"; do
    log=$logs/benchmarks.log
    [ "$part" = tests ] && log=$logs/tests.log
    mapfile -t words < <(command_of "$part")
    echo "== $part"
    start=$SECONDS
    # Lines that begin with an ellipsis say what is under way; the log keeps them.
    "$python" "${words[@]}" 2>&1 | tee -a "$log" | grep -v '^…'
    code=${PIPESTATUS[0]}
    [ "$code" -eq 0 ] || failed=1
    note=
    [ "$part" = tests ] && note=$(tail -n 1 "$log")
    table+=("$(printf '%-12s %4s %6ss  %s' "$part" "$code" $((SECONDS - start)) "$note")")
    echo
done

printf '%-12s %4s %7s  %s\n' part exit time "logs in $logs"
printf '%s\n' "${table[@]}"
exit $failed
