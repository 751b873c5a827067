#!/bin/bash
# hostfile + ssh loop + nohup + background
HOSTS=(gpu01 gpu02 gpu03 gpu04)
N=${#HOSTS[@]}
CMD="cd /data/Megatron-LM && source /data/venv/bin/activate && export NCCL_SOCKET_IFNAME=bond0 && "
ARGS='--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --num-experts 16 --moe-router-topk 2 --expert-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 512 --bf16 --vocab-size 32000 --mock-data --tokenizer-type NullTokenizer --train-iters 10'
for i in "${!HOSTS[@]}"; do
  ssh ${HOSTS[$i]} "$CMD nohup torchrun --nnodes=$N --node_rank=$i --nproc_per_node=8 --master_addr=${HOSTS[0]} --master_port=29500 pretrain_gpt.py $ARGS > log.$i 2>&1 &"
done
wait
