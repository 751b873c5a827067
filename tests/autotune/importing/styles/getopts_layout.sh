#!/bin/bash
TP=1; PP=1; EP=8; MBS=2; EXTRA=
usage() { echo "usage: $0 [-t TP] [-p PP] [-e EP] [-b MBS] [-x EXTRA]"; exit 2; }
while getopts ":t:p:e:b:x:h" o; do
  case $o in
    t) TP=$OPTARG ;; p) PP=$OPTARG ;; e) EP=$OPTARG ;; b) MBS=$OPTARG ;; x) EXTRA=$OPTARG ;; h|*) usage ;;
  esac
done
shift $((OPTIND - 1))
NGPU=$(nvidia-smi -L | wc -l)
if (( NGPU % (TP * PP) )); then echo "bad layout" >&2; exit 1; fi
DP=$((NGPU / (TP * PP)))
GBS=$(( DP * MBS * 16 ))
SP=""; if [ "$TP" -gt 1 ]; then SP="--sequence-parallel"; fi
torchrun --standalone --nproc_per_node="$NGPU" pretrain_gpt.py \
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --swiglu --disable-bias-linear --normalization RMSNorm \
  --untie-embeddings-and-output-weights --vocab-size 50304 --tokenizer-type NullTokenizer --mock-data \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --expert-model-parallel-size $EP $SP \
  --micro-batch-size $MBS --global-batch-size $GBS --bf16 --lr 4e-4 --train-iters $((1000000000000 / (GBS * 4096))) $EXTRA "$@"
