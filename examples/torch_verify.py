"""One verify step on torch tensors, compared with the same in plain torch, in float64. On the GPU where there is one.

pip install .
python examples/torch_verify.py
"""

import math

import torch

import mlaverify

device = "cuda" if torch.cuda.is_available() else "cpu"
heads, qlen, key_width, value_width, page_size = 16, 4, 576, 512, 64
lengths = [300, 1000, 77]  # keys of each request in the cache, the 4 tokens to verify included
pages = [math.ceil(n / page_size) for n in lengths]
scale = 1 / math.sqrt(192)

torch.manual_seed(0)
kv_cache = torch.randn(sum(pages), page_size, 1, key_width, device=device).bfloat16()
q = torch.randn(len(lengths) * qlen, heads, key_width, device=device).bfloat16() / 4
block_table = torch.zeros(len(lengths), max(pages), dtype=torch.int32, device=device)
free_pages = torch.randperm(sum(pages), device=device).int()
for request, mine in enumerate(free_pages.split(pages)):
    block_table[request, : len(mine)] = mine
seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)

out, lse = mlaverify.verify(q, kv_cache, block_table, seq_lens, qlen=qlen, v_head_dim=value_width, sm_scale=scale)

worst = 0.0
for row in range(len(q)):
    request, token = divmod(row, qlen)
    seen = lengths[request] - qlen + 1 + token  # each token sees one key more than the one before
    keys = kv_cache[block_table[request].long()].reshape(-1, key_width)[:seen].double()
    weights = torch.softmax(q[row].double() @ keys.T * scale, dim=-1)
    expected = weights @ keys[:, :value_width]
    worst = max(worst, ((out[row].double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item())
print(f"mlaverify {mlaverify.__version__} on {device}: {len(q)} rows, largest relative error {worst:.1e}")
assert worst < 4e-3, "not within the tolerance of bf16"
