#!/bin/bash
# line continuations, with comments between them through arrays and $() and heredoc'd yaml
MODEL_SIZE=${1:-small}
case "$MODEL_SIZE" in
  small) L=12; H=1024; A=16 ;;
  big)   L=48; H=6144; A=48 ;;
  *) echo "unknown"; exit 2 ;;
esac
SEQ=4096
GPUS=8
if [ "$H" -gt 2048 ]; then TP=4; else TP=1; fi
OPTS=" \
    --num-layers $L \
    --hidden-size $H \
    --num-attention-heads $A \
    --seq-length $SEQ --max-position-embeddings $SEQ \
    --num-experts 8 --moe-router-topk 2 \
    --tensor-model-parallel-size $TP \
    --expert-model-parallel-size $(( GPUS / TP > 8 ? 8 : GPUS / TP )) \
    --micro-batch-size 1 --global-batch-size 256 --bf16 --vocab-size 32000 \
    --train-iters 100 --mock-data --tokenizer-type NullTokenizer \
"
cat > /tmp/cfg.yaml <<Y
a: 1
Y
run_cmd="torchrun --standalone --nproc_per_node $GPUS pretrain_gpt.py $OPTS"
echo ${run_cmd}
eval ${run_cmd}
set +x
