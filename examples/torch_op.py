"""A transformer block under torch.compile whose layer norm and softmax are kernels, forward and backward."""

import torch
from torch import nn

import jitload

SOURCE = r"""
// One thread for each row. The backward kernels write the gradient of the input.
#define ROW(n) int row = blockIdx.x * blockDim.x + threadIdx.x; if (row >= rows) return; const int start = row * n
__global__ void layer_norm(const float* x, float* y, float* scale, int rows, int n) {
  ROW(n);
  float mean = 0, variance = 0;
  for (int i = 0; i < n; ++i) mean += x[start + i] / n;
  for (int i = 0; i < n; ++i) variance += (x[start + i] - mean) * (x[start + i] - mean) / n;
  scale[row] = rsqrtf(variance + 1e-5f);
  for (int i = 0; i < n; ++i) y[start + i] = (x[start + i] - mean) * scale[row];
}
__global__ void layer_norm_back(const float* grad, const float* y, const float* scale, float* dx, int rows, int n) {
  ROW(n);
  float mean = 0, product = 0;
  for (int i = 0; i < n; ++i) { mean += grad[start + i] / n; product += grad[start + i] * y[start + i] / n; }
  for (int i = 0; i < n; ++i) dx[start + i] = (grad[start + i] - mean - y[start + i] * product) * scale[row];
}
__global__ void softmax(const float* x, float* y, int rows, int n) {
  ROW(n);
  float high = x[start], sum = 0;
  for (int i = 1; i < n; ++i) high = fmaxf(high, x[start + i]);
  for (int i = 0; i < n; ++i) sum += y[start + i] = expf(x[start + i] - high);
  for (int i = 0; i < n; ++i) y[start + i] /= sum;
}
__global__ void softmax_back(const float* grad, const float* y, float* dx, int rows, int n) {
  ROW(n);
  float product = 0;
  for (int i = 0; i < n; ++i) product += grad[start + i] * y[start + i];
  for (int i = 0; i < n; ++i) dx[start + i] = (grad[start + i] - product) * y[start + i];
}
"""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"n": "{0}.shape[{0}.ndim - 1]", "rows": "{0}.numel() // {0}.shape[{0}.ndim - 1]"}
launches = {
    name: jitload.Launch(grid="ceil_div(rows, 32)", block=32, args={k: v.format(x) for k, v in SIZES.items()})
    for name, x in {"layer_norm": "x", "layer_norm_back": "y", "softmax": "x", "softmax_back": "y"}.items()
}
mod = jitload.load_inline(
    "block", cuda_sources=SOURCE, functions=launches, arch="native" if DEVICE == "cuda" else "cpu"
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
    step = torch.compile(block, fullgraph=True) if kernels else block
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
