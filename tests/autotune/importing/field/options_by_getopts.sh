#!/bin/bash
# getopts
TP=1; PP=1; EP=1; MBS=1; NODES=1
usage() { echo "usage: $0 [-t tp] [-p pp] [-e ep] [-m mbs] [-n nodes]"; exit 1; }
while getopts "t:p:e:m:n:h" opt; do
  case $opt in
    t) TP=$OPTARG ;;
    p) PP=$OPTARG ;;
    e) EP=$OPTARG ;;
    m) MBS=$OPTARG ;;
    n) NODES=$OPTARG ;;
    h|*) usage ;;
  esac
done
shift $((OPTIND - 1))
EXTRA_ARGS=("$@")
python -m torch.distributed.run --nproc_per_node=8 --nnodes=$NODES --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29500 \
  examples/pretrain_gpt.py --use-mcore-models --num-layers 12 --hidden-size 1024 --num-attention-heads 16 \
  --seq-length 2048 --max-position-embeddings 2048 --num-experts 16 --moe-router-topk 2 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --expert-model-parallel-size $EP \
  --micro-batch-size $MBS --global-batch-size $((MBS * 8 * NODES * 16)) --bf16 --vocab-size 32000 --mock-data --tokenizer-type NullTokenizer \
  --train-iters 100 "${EXTRA_ARGS[@]}"
