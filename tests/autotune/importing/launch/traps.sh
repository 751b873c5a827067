# Quoting, numbers below zero, arrays in quotes, here-documents and what is none of our business.
rm -rf "$HOME/never"; touch /tmp/moe_autotune_must_not_exist; $(touch /tmp/moe_autotune_must_not_exist)
NAME='single $quoted'
A=("two words" '' "--x=-1.5" $'tab\there')
B=(--layers "${#A[@]}" "${A[1]}")
unset NOTHING
sum=$(( (2 + 3) * 4 % 7 - 1 ))
for node in a b c; do SEEN=$node; done
cat <<EOF > /tmp/moe_autotune_must_not_exist
python train.py --wrong
EOF
export MODE=${MODE:=fast}
nohup nsys profile -o out -t cuda,nvtx --stats=true \
  mpirun -np 8 --mca btl tcp,self -x NCCL_DEBUG=INFO --bind-to none \
  python3 -u -m team.train --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \
  --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 512 --name "$NAME" "${A[@]}" ${B[@]} \
  --seed -1 --sum=$sum --mode "$MODE" "${NONE[@]}" --note "it's \"fine\"" --lr 1e-4 --train-iters 3 # the end
