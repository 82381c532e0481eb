"""Build a text that was written for torch.utils.cpp_extension, without torch's headers."""

import torch

from jitload.cpp_extension import load_inline

SOURCE = """
torch::Tensor row_norms(torch::Tensor x, double epsilon) {
  TORCH_CHECK(x.dim() == 2, "x must be 2D, got ", x.sizes());
  return (x * x).sum(/*dim=*/1).add(epsilon).sqrt();
}
"""


def main() -> None:
    module = load_inline("norms", SOURCE, functions=["row_norms"])
    x = torch.arange(6.0).view(2, 3)
    norms = module.row_norms(x, 1e-6)
    assert torch.allclose(norms, torch.linalg.vector_norm(x, dim=1), atol=1e-3)
    print(norms)
    try:
        module.row_norms(x[0], 1e-6)
    except RuntimeError as error:
        print("an error of the text:", error)


if __name__ == "__main__":
    main()
