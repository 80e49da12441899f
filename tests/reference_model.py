"""The model of `mlaverify generate` once more, by the book: float64, no absorbed projections, no cache, no pages; and checkpoints of random
weights. Needs NumPy only and shares no code with the C++ side: keep it that way, so that agreement stays evidence."""
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "conformance"))
import mla_oracle  # noqa: E402

SMALL = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "num_attention_heads": 3,
         "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 10, "intermediate_size": 50,
         "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500.0, "max_position_embeddings": 300, "tie_word_embeddings": True}


def shapes(config):
    """Name -> shape of every tensor of a checkpoint."""
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    out = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    layers, mtp = config["num_hidden_layers"], config.get("num_nextn_predict_layers", 0)
    for i in range(layers + mtp):
        p = f"model.layers.{i}."
        out |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,),
                p + "self_attn.q_proj.weight": (heads * (nope + rope), hidden),
                p + "self_attn.kv_a_proj_with_mqa.weight": (rank + rope, hidden),
                p + "self_attn.kv_a_layernorm.weight": (rank,),
                p + "self_attn.kv_b_proj.weight": (heads * (nope + value), rank),
                p + "self_attn.o_proj.weight": (hidden, heads * value),
                p + "mlp.gate_proj.weight": (config["intermediate_size"], hidden),
                p + "mlp.up_proj.weight": (config["intermediate_size"], hidden),
                p + "mlp.down_proj.weight": (hidden, config["intermediate_size"])}
        if i == layers:
            out |= {p + "enorm.weight": (hidden,), p + "hnorm.weight": (hidden,), p + "shared_head.norm.weight": (hidden,),
                    p + "eh_proj.weight": (hidden, 2 * hidden)}
    return out


def write_random(folder, config, seed=1):
    """A checkpoint of random weights that keeps activations near 1."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes(config).items():
        x = random.normal(size=shape) / np.sqrt(shape[-1]) if len(shape) == 2 else 1 + 0.2 * random.normal(size=shape)
        tensors[name] = ("BF16", mla_oracle.to_bf16(x))
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mla_oracle.save(folder / "model.safetensors", tensors, {})
    (folder / "config.json").write_text(json.dumps(config))


class Reference:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        tensors, _ = mla_oracle.load(folder / "model.safetensors")
        self.weights = {name: mla_oracle.decode(*t) for name, t in tensors.items()}

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weights[name + ".weight"]

    def linear(self, name, x):
        return x @ self.weights[name + ".weight"].T

    def rotated(self, x, positions):
        """Each pair (2i, 2i+1) of [tokens, ..., width] as a complex number, turned."""
        width = x.shape[-1]
        angle = positions[:, None] * self.config["rope_theta"] ** (-2.0 * np.arange(width // 2) / width)
        turn = np.exp(1j * angle).reshape((len(positions),) + (1,) * (x.ndim - 2) + (width // 2,))
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack((turned.real, turned.imag), -1).reshape(x.shape)

    def layer(self, index, x, first=0, past=None):
        """x: [tokens, hidden] at the positions from `first` on, behind the keys and values `past`. Returns the same of the next layer,
        and all keys and values."""
        c, p = self.config, f"model.layers.{index}."
        heads, nope, rope, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        tokens, positions = len(x), np.arange(first, first + len(x))
        h = self.norm(p + "input_layernorm", x)
        q = self.linear(p + "self_attn.q_proj", h).reshape(tokens, heads, nope + rope)
        q = np.concatenate((q[..., :nope], self.rotated(q[..., nope:], positions)), -1)
        a = self.linear(p + "self_attn.kv_a_proj_with_mqa", h)
        kv = self.linear(p + "self_attn.kv_b_proj", self.norm(p + "self_attn.kv_a_layernorm", a[:, :rank]))
        kv = kv.reshape(tokens, heads, -1)
        shared = np.repeat(self.rotated(a[:, None, rank:], positions), heads, 1)
        k, v = np.concatenate((kv[..., :nope], shared), -1), kv[..., nope:]
        if past is not None:
            k, v = np.concatenate((past[0], k)), np.concatenate((past[1], v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(nope + rope)
        scores[:, np.arange(len(k))[None] > positions[:, None]] = -np.inf
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        x = x + self.linear(p + "self_attn.o_proj", np.einsum("hqk,khd->qhd", weight, v).reshape(tokens, -1))
        h = self.norm(p + "post_attention_layernorm", x)
        gate = self.linear(p + "mlp.gate_proj", h)
        return x + self.linear(p + "mlp.down_proj", gate / (1 + np.exp(-gate)) * self.linear(p + "mlp.up_proj", h)), (k, v)

    def head(self, norm, x):
        return self.linear("model.embed_tokens", self.norm(norm, x))

    def states(self, tokens):
        x = self.weights["model.embed_tokens.weight"][tokens]
        for i in range(self.config["num_hidden_layers"]):
            x, _ = self.layer(i, x)
        return x

    def mtp(self, tokens, states, first=0, past=None):
        n = self.config["num_hidden_layers"]
        p = f"model.layers.{n}."
        embedded = self.weights["model.embed_tokens.weight"][tokens]
        x = np.concatenate((self.norm(p + "enorm", embedded), self.norm(p + "hnorm", states)), -1)
        return self.layer(n, self.linear(p + "eh_proj", x), first, past)

    def run(self, text):
        """What tests/support/generate_logits.cpp writes."""
        tokens = np.frombuffer(text, np.uint8)
        states = self.states(tokens)
        out = {"logits": self.head("model.norm", states)}
        if self.config.get("num_nextn_predict_layers", 0):
            norm = f"model.layers.{self.config['num_hidden_layers']}.shared_head.norm"
            first, past = self.mtp(tokens[1:], states[:-1])
            out["draft"] = self.head(norm, first)
            best = np.argmax(out["draft"][-1:], -1)
            again, _ = self.mtp(best, first[-1:], len(tokens) - 1, past)
            out["again"] = self.head(norm, again)
        return out
