#!/bin/bash
cat > job.sbatch <<'E1'
#!/bin/bash
#SBATCH -N 2
#SBATCH --gpus-per-node=h100:8
#SBATCH --ntasks-per-node=8
module load cuda
srun ./inner.sh 4
E1
cat <<E2 > inner.sh
#!/bin/bash
cd /opt/megatron
export CUDA_DEVICE_MAX_CONNECTIONS=1
exec python pretrain_gpt.py --num-layers \$1 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data --num-experts 8 "\${@:2}"
E2
chmod +x inner.sh
sbatch --account=x job.sbatch
