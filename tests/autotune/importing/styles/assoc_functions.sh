#!/bin/bash
set -Eeuo pipefail
trap 'echo "failed at line $LINENO" >&2' ERR
declare -A SIZE=([layers]=61 [hidden]=7168 [heads]=128 [experts]=256)
declare -a ARGS=()
add() { local k=$1; shift; ARGS+=("--${k//_/-}" "$@"); }
flag() { local f; for f in "$@"; do ARGS+=("--${f//_/-}"); done; }
add num_layers "${SIZE[layers]}"; add hidden_size ${SIZE[hidden]}; add num_attention_heads ${SIZE[heads]}
add num_experts ${SIZE[experts]}; add moe_router_topk 8; add moe_ffn_hidden_size 2048; add ffn_hidden_size 18432
add moe_layer_freq "([0]*3+[1]*58)"
add moe_shared_expert_intermediate_size 2048
add q_lora_rank 1536; add kv_lora_rank 512; add qk_head_dim 128; add qk_pos_emb_head_dim 64; add v_head_dim 128
flag multi_latent_attention swiglu disable_bias_linear untie_embeddings_and_output_weights qk_layernorm bf16 sequence_parallel use_distributed_optimizer
add normalization RMSNorm; add position_embedding_type rope
add seq_length 4096; add max_position_embeddings 4096; add vocab_size 129280
add moe_router_score_function sigmoid; flag moe_router_enable_expert_bias; add moe_router_num_groups 8; add moe_router_group_topk 4
add tensor_model_parallel_size 2; add pipeline_model_parallel_size 16; add expert_model_parallel_size 64
add pipeline_model_parallel_layout 'Et*3|(tt|)*29L'
add micro_batch_size 1; add global_batch_size 8192; add lr 2.2e-4; add train_iters 100000
add data_path $(printf '%s ' 0.5 /d/a 0.5 /d/b); add tokenizer_type NullTokenizer
: "${NNODES:=128}"
exec torchrun --nnodes "$NNODES" --nproc-per-node 8 --rdzv-id "${RUN_ID:-$RANDOM}" pretrain_gpt.py "${ARGS[@]}" "$@"
