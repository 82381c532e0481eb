"""A transformer block under torch.compile whose layer norm and softmax are kernels, forward and backward."""

import sys
from pathlib import Path

import torch
from torch import nn

import jitload

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "inductor"  # of torch.compile
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"n": "{0}.shape[{0}.ndim - 1]", "rows": "{0}.numel() // {0}.shape[{0}.ndim - 1]"}
launches = {
    name: jitload.Launch(grid="ceil_div(rows, 32)", block=32, args={k: v.format(x) for k, v in SIZES.items()})
    for name, x in {"layer_norm": "x", "layer_norm_back": "y", "softmax": "x", "softmax_back": "y"}.items()
}
mod = jitload.load(
    "block",
    sources=str(Path(__file__).with_name("kernels.cu")),
    functions=launches,
    arch="native" if DEVICE == "cuda" else "cpu",
)
norm = jitload.torch_op(
    "block::layer_norm", mod.layer_norm, out={"y": "like x", "scale": "[x.numel() // x.shape[x.ndim - 1]]"}
)
norm_back = jitload.torch_op("block::layer_norm_back", mod.layer_norm_back, out={"dx": "like y"})
softmax = jitload.torch_op("block::softmax", mod.softmax, out={"y": "like x"})
softmax_back = jitload.torch_op("block::softmax_back", mod.softmax_back, out={"dx": "like y"})
norm.register_autograd(
    lambda ctx, grad, _: norm_back(grad.contiguous(), *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*output),
)
softmax.register_autograd(
    lambda ctx, grad: softmax_back(grad.contiguous(), *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


class Block(nn.Module):
    """Attention with one head and a feed-forward layer, with the kernels or with torch's own functions."""

    def __init__(self, width, *, kernels):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = (lambda x: norm(x)[0]) if kernels else lambda x: nn.functional.layer_norm(x, x.shape[-1:])
        self.softmax = softmax if kernels else lambda x: x.softmax(-1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.proj(self.softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v)
        return x + self.feed(self.norm(x))


def train(*, kernels):
    torch.manual_seed(0)
    x, target = torch.randn(2, 4, 16, 32, device=DEVICE)
    block = Block(32, kernels=kernels).to(DEVICE)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)
    step = torch.compile(block, fullgraph=True, backend=BACKEND) if kernels else block
    losses = []
    for _ in range(5):
        loss = nn.functional.mse_loss(step(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


ours, reference = train(kernels=True), train(kernels=False)
print("kernels:", *(f"{loss:.5f}" for loss in ours))
print("torch:  ", *(f"{loss:.5f}" for loss in reference))
torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
assert ours[-1] < ours[0]
print("the losses are equal to those of torch's own layer norm and softmax")
