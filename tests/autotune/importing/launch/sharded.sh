#!/bin/bash
MODEL_SIZE=${MODEL_SIZE:-small}
if [ "$MODEL_SIZE" = small ]; then
    LAYERS=8; HIDDEN=512
elif [ "$MODEL_SIZE" = large ]; then
    LAYERS=64; HIDDEN=8192
else
    echo "no such size"; exit 1
fi
ARGS="--num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024
 --micro-batch-size 4 --vocab-size 32000 --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 256 --quick-geglu
 --moe-router-load-balancing-type sinkhorn --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params
 --ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion --expert-model-parallel-size 4 --use-distributed-optimizer
 --window-size 128,0 --softmax-type learnable --normalization RMSNorm --bf16 --moe-expert-capacity-factor 1.25
 --moe-pad-expert-input-to-capacity --init-model-with-meta-device --calculate-per-token-loss"
CMD="torchrun --standalone --nproc-per-node 8 pretrain_gpt.py $ARGS --data-path 0.3 /data/a 0.7 /data/b --lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer"
echo $CMD
eval $CMD
