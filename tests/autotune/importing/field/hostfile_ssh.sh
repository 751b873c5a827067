#!/bin/bash
# deepspeed-like: start torchrun on every host of a hostfile ("host slots=8")
HOSTFILE=${1:-hostfile}
NNODES=$(grep -c slots "$HOSTFILE")
MASTER=$(head -n 1 "$HOSTFILE" | awk '{print $1}')
ARGS=$(echo $(cat <<EOF
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16
  --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024
  --seq-length 4096 --max-position-embeddings 4096
  --micro-batch-size 2 --global-batch-size 512
  --expert-model-parallel-size 8
  --swiglu --bf16 --normalization RMSNorm --qk-layernorm --position-embedding-type rope
  --mock-data --tokenizer-type NullTokenizer --vocab-size 50304
  --train-iters 100 --lr 4e-4
EOF
))
rank=0
while read -r host slots; do
  [ -z "$host" ] && continue
  ssh -n -o StrictHostKeyChecking=no "$host" "cd $PWD; env NCCL_DEBUG=INFO OMP_NUM_THREADS=4 \
     torchrun --nnodes $NNODES --nproc_per_node 8 --node_rank $rank --master_addr $MASTER --master_port 29501 \
     pretrain_gpt.py $ARGS" > log.$rank 2>&1 &
  rank=$((rank + 1))
done < "$HOSTFILE"
wait
