"""The steps of step.py as torch tensors."""

import numpy as np
import torch

from step import Step

DEVICES = ["cpu", "cuda"]
TORCH_TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
}
BITS = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16), 4: (np.int32, torch.int32)}


def tensor(array, dtype, device):
    """A NumPy array, ml_dtypes' types included, on a device."""
    bits, torch_bits = BITS[array.dtype.itemsize]
    return torch.from_numpy(array.view(bits).copy()).view(torch_bits).view(dtype).to(device)


class TorchStep(Step):
    """A step whose arrays are on `device`."""

    def __init__(self, lens, device, **options):
        super().__init__(lens, **options)
        self.device = device
        self.q = tensor(self.q, TORCH_TYPES[self.dtype], device)
        self.kv_cache = tensor(self.kv_cache, TORCH_TYPES[self.kv_dtype], device)
        for name in ("block_table", "seq_lens", "real_seq_lens", "k_scale"):
            if getattr(self, name) is not None:
                setattr(self, name, torch.from_numpy(getattr(self, name)).to(device))

    def outputs(self):
        rows, heads, _ = self.q.shape
        nan = float("nan")
        return self.q.new_full((rows, heads, self.lv), nan), self.q.new_full((rows, heads), nan, dtype=torch.float32)

    def check(self, out, lse):
        super().check(out.double().cpu().numpy(), lse.double().cpu().numpy())

    def triton_arguments(self, out, lse, num_kv_splits=1, attn_logits=None):
        """The arguments of decode_attention_fwd_verify."""
        return (
            self.q, self.kv_cache, self.kv_cache[..., : self.lv], out, lse, self.block_table, self.seq_lens, self.real_seq_lens,
            self.qlen, attn_logits, num_kv_splits, self.sm_scale, self.page_size, self.k_scale,
        )  # fmt: skip
