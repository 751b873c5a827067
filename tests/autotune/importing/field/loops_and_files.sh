#!/bin/bash
# args from key=value pairs, a file and conditions
declare -A CFG=(
  [num-layers]=24
  [hidden-size]=2048
  [num-attention-heads]=16
  [seq-length]=2048
  [max-position-embeddings]=2048
  [num-experts]=32
  [moe-router-topk]=4
  [moe-ffn-hidden-size]=1024
)
IFS=',' read -r TP PP EP <<< "${LAYOUT:-1,2,8}"
ARGS=()
for key in num-layers hidden-size num-attention-heads seq-length max-position-embeddings num-experts moe-router-topk moe-ffn-hidden-size; do
  ARGS+=("--$key" "${CFG[$key]}")
done
for kv in micro-batch-size=2 global-batch-size=256 train-iters=500 lr=3e-4; do
  ARGS+=(--${kv%%=*} ${kv#*=})
done
for flag in swiglu disable-bias-linear bf16 use-distributed-optimizer mock-data; do ARGS+=("--${flag}"); done
mapfile -t EXTRA < extra_args.txt
while IFS= read -r line; do
  [[ -z "$line" || "$line" == \#* ]] && continue
  ARGS+=($line)
done < more_args.txt
if (( EP > 1 )); then ARGS+=(--expert-model-parallel-size "$EP"); fi
if [ $PP -gt 1 ]; then
  ARGS+=(--pipeline-model-parallel-size $PP)
fi
i=0
while [ $i -lt 2 ]; do i=$((i+1)); done
ARGS+=(--num-workers $i)
readonly ARGS
python3 -m torch.distributed.run --nnodes 1 --nproc-per-node "${NGPU:-8}" pretrain_gpt.py "${ARGS[@]}" "${EXTRA[@]}" --tensor-model-parallel-size ${TP}
