#!/usr/bin/env python3
"""Trains the demonstration model of this folder, and writes config.json, model.safetensors (bf16) and loss.csv.

    bible -f Gen1:1-Rev22:21 > kjv.txt                     # Debian package bible-kjv, text in the public domain
    python3 train.py --text kjv.txt --out trained          # on one GPU: minutes
    python3 train.py --text kjv.txt --out trained --steps 3 --batch 2 --device cpu     # does it run at all?

The model is a small decoder over bytes, built as DeepSeek-V3 is: RMSNorm, Multi-head Latent Attention (MLA) with a latent of 512 and
a rotary key of 64 numbers a token, SwiGLU, tied embeddings. One multi-token-prediction (MTP) module behind it guesses the byte after the
next; applied again to its own output and guess it drafts further bytes. It is trained as it is used: `DEPTHS` times in a row, where a
repetition sees the latents of the first pass for old positions and its own chain for the last ones.

Parameters have the names of a Hugging Face checkpoint of the DeepSeek family; the MTP module is the layer behind the last, as there.
"""
import argparse
import csv
import json
import math
import re
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 8,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "intermediate_size": 512,
    "hidden_act": "silu",
    "n_routed_experts": None,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_interleave": True,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
DEPTHS = 4        # bytes that the MTP module drafts in training
MTP_WEIGHT = 0.5  # of its mean loss, beside the model's own
HELD_OUT = 20     # every HELD_OUT-th chapter is kept from training


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def rope_table(config, length, device):
    """cos and sin of the rotation of each (position, pair): [length, qk_rope_head_dim / 2]."""
    width = config["qk_rope_head_dim"]
    frequency = config["rope_theta"] ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, table):
    """Rotates the neighbours (2i, 2i+1) of the last dimension; x is [batch, length, heads, width]."""
    cos, sin = (t[:, None, :] for t in table)
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
        self.q_proj = linear(hidden, heads * (nope + rope))
        self.kv_a_proj_with_mqa = linear(hidden, config["kv_lora_rank"] + rope)
        self.kv_a_layernorm = RMSNorm(config["kv_lora_rank"], config["rms_norm_eps"])
        self.kv_b_proj = linear(config["kv_lora_rank"], heads * (nope + value))
        self.o_proj = linear(heads * value, hidden)

    def forward(self, x, table, past, mask):
        """x: [batch, length, hidden]. `past`: keys and values of earlier passes, before those of this one; `mask` says who sees what
        (None: causal, without a past). Returns the output, and (keys, values) with this pass's behind the past."""
        config = self.config
        batch, length, _ = x.shape
        heads, nope, value = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
        q = self.q_proj(x).view(batch, length, heads, -1)
        q = torch.cat((q[..., :nope], rotate(q[..., nope:], table).to(q.dtype)), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((config["kv_lora_rank"], config["qk_rope_head_dim"]), dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, heads, nope + value)
        k_rope = rotate(k_rope.unsqueeze(2), table).to(kv.dtype).expand(-1, -1, heads, -1)
        k, v = torch.cat((kv[..., :nope], k_rope), dim=-1), kv[..., nope:]
        if past is not None:
            k, v = torch.cat((past[0], k), dim=1), torch.cat((past[1], v), dim=1)
        q, keys, values = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, heads * value)), (k, v)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        self.input_layernorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, table, past=None, mask=None):
        out, present = self.self_attn(self.input_layernorm(x), table, past, mask)
        x = x + self.dropout(out)
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x))), present


class SharedHead(nn.Module):
    """The MTP module's norm before the model's own output embedding."""

    def __init__(self, config):
        super().__init__()
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class MTP(Layer):
    """From the state that led to a byte, and that byte: the state from which the next one is guessed."""

    def __init__(self, config, dropout):
        super().__init__(config, dropout)
        self.enorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.hnorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.eh_proj = linear(2 * config["hidden_size"], config["hidden_size"])
        self.shared_head = SharedHead(config)

    def forward(self, embedded, state, table, past=None, mask=None):
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(state)), dim=-1))
        return super().forward(x, table, past, mask)


class Decoder(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        layers = [Layer(config, dropout) for _ in range(config["num_hidden_layers"])]
        self.layers = nn.ModuleList([*layers, MTP(config, dropout)])
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class Model(nn.Module):
    def __init__(self, config, dropout=0.0):
        super().__init__()
        self.config = config
        self.model = Decoder(config, dropout)
        for name, parameter in self.named_parameters():  # what is added to the residual stream starts small
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config["num_hidden_layers"]))

    def loss(self, state, norm, targets):
        logits = F.linear(norm(state), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def forward(self, tokens):
        """tokens: [batch, length + 1 + DEPTHS]. Returns the losses in nats a byte: of the model, and of the MTP module at each depth."""
        decoder = self.model
        length = tokens.shape[1] - 1 - DEPTHS
        table = rope_table(self.config, length + DEPTHS, tokens.device)
        embedded = decoder.embed_tokens(tokens)
        here = tuple(t[:length] for t in table)
        x = embedded[:, :length]
        for layer in decoder.layers[:-1]:
            x, _ = layer(x, here)
        losses = [self.loss(x, decoder.norm, tokens[:, 1 : length + 1])]

        # Depth d at index i takes the byte i+d and stands in the slot i+d-1 of the MTP module's cache: rotated by that, and seeing the
        # first pass up to slot i, that is what is known of accepted bytes, and each later depth of its own chain.
        mtp, past = decoder.layers[-1], None
        first = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        chain = torch.eye(length, dtype=torch.bool, device=tokens.device)
        for depth in range(1, DEPTHS + 1):
            mask = None if depth == 1 else torch.cat((first, *[chain] * (depth - 1)), dim=1)
            slot = tuple(t[depth - 1 : depth - 1 + length] for t in table)
            x, past = mtp(embedded[:, depth : depth + length], x, slot, past, mask)
            losses.append(self.loss(x, mtp.shared_head.norm, tokens[:, depth + 1 : depth + 1 + length]))
        return torch.stack(losses)


def read_text(path):
    """The verses of `bible -f`, one a line without their references, an empty line behind each chapter. Returns (training text, held-out
    text): every HELD_OUT-th chapter is held out."""
    chapters = {}
    for line in Path(path).read_text(encoding="ascii").splitlines():
        match = re.fullmatch(r"(\w+):\d+ (.+)", line)
        if match:
            chapters.setdefault(match[1], []).append(match[2].strip())
    texts = ["\n".join(verses) + "\n\n" for verses in chapters.values()]
    held_out = [t for i, t in enumerate(texts) if i % HELD_OUT == HELD_OUT - 1]
    training = [t for i, t in enumerate(texts) if i % HELD_OUT != HELD_OUT - 1]
    return tuple(torch.tensor(list("".join(t).encode()), dtype=torch.uint8) for t in (training, held_out))


def autocast(device):
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


@torch.no_grad()
def bits_per_byte(model, data, length, device):
    """Of all of `data`, in windows of `length` bytes that know nothing of each other: the model, then the MTP depths."""
    model.eval()
    window = length + 1 + DEPTHS
    windows = data[: len(data) // length * length].unfold(0, window, length).to(device).long()
    total = torch.zeros(1 + DEPTHS, device=device)
    for part in windows.split(64):
        with autocast(device):
            total += model(part) * len(part)
    model.train()
    return (total / len(windows) / math.log(2)).tolist()


def bf16_weights(model):
    return {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in model.named_parameters()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--max-seconds", type=float, default=600, help="end the schedule sooner, however many steps that is")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    training, held_out = read_text(options.text)
    training = training.to(options.device)
    model = Model(CONFIG, options.dropout).to(options.device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=options.lr, betas=(0.9, 0.95), fused=options.device == "cuda")
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(training)} bytes to train on, {len(held_out)} held out",
          flush=True)

    offsets = torch.arange(options.length + 1 + DEPTHS, device=options.device)
    best, begin = math.inf, time.time()
    with open(options.out / "loss.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["step", "seconds", "training", "held_out", *[f"held_out_mtp_{d}" for d in range(1, DEPTHS + 1)]])
        step, done = 0, 0.0
        while done < 1:
            rate = min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            for group in optimizer.param_groups:
                group["lr"] = options.lr * rate
            start = torch.randint(len(training) - len(offsets), (options.batch, 1), device=options.device)
            with autocast(options.device):
                losses = model(training[start + offsets].long())
            (losses[0] + MTP_WEIGHT * losses[1:].mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            done = max(step / options.steps, (time.time() - begin) / options.max_seconds)
            if step % options.eval_every == 0 or done >= 1 or step == 20:
                bits = bits_per_byte(model, held_out, options.length, options.device)
                row = [losses[0].item() / math.log(2), *bits]
                table.writerow([step, f"{time.time() - begin:.1f}", *[f"{b:.4f}" for b in row]])
                file.flush()
                print(f"step {step}, {time.time() - begin:.0f} s: training {row[0]:.3f}, held out {bits[0]:.3f} bits a byte, MTP "
                      + " ".join(f"{b:.3f}" for b in bits[1:]), flush=True)
                if bits[0] < best:
                    best = bits[0]
                    save_file(bf16_weights(model), options.out / "model.safetensors", metadata={"format": "pt", "step": str(step)})

    # The weights as they are in the file.
    model.load_state_dict({k: v.float() for k, v in load_file(options.out / "model.safetensors").items()})
    bits = bits_per_byte(model, held_out, options.length, options.device)
    print("model.safetensors, held out, bits a byte: " + " ".join(f"{b:.4f}" for b in bits))


if __name__ == "__main__":
    main()
