"""Random kernels without races: each has one right answer, whichever of its threads goes first.

A kernel is the expansion of a grammar. What is in angle brackets is replaced by a random choice from the rule of that
name; `<i!>` is a new name, and `<i>` that name again.
"""

from __future__ import annotations

import random
import re

HEAD = r"""
#define FULL 0xffffffffu
struct Pair { float a; unsigned b; };
__device__ float mix(float a, float b) { return a * 0.5f + b; }
__device__ __forceinline__ unsigned turn(unsigned a, int by) { return a << (by & 7) | a >> 3; }
__device__ void add_to(float& to, float by) { to += by; }
__device__ void bump(unsigned* to, unsigned by) { *to += by; }
template <int N> __device__ float scaled(float a) { return a * N; }
__device__ float meet(float v, float* s, unsigned tid, unsigned width) {
  s[tid] = v;
  __syncthreads();
  float r = s[(tid + 1) % width] + s[0];
  __syncthreads();
  return r;
}
"""
BEGIN = r"""
extern "C" __global__ void <name>(const float* x, const unsigned* k, float* y, unsigned* out, unsigned n, unsigned m) {
  __shared__ float s[256];
  __shared__ unsigned hits[8];
  <places>
  const unsigned gid = blockIdx.x * width + tid, all = gridDim.x * width;
  for (unsigned c = tid; c < 256; c += width) s[c] = 0;
  if (tid < 8) hits[tid] = 0;
  __syncthreads();
  float a = x[gid % n], b = 1, r[4] = {1, 2, 3, 4};
  unsigned u = k[gid % n], v = tid;
  Pair p = {a, u};
"""
END = r"""
  __syncthreads();
  y[4u * n + gid] = a + b * 0.5f + r[u & 3u] + p.a;
  out[gid] = u ^ v ^ p.b ^ hits[gid & 7u];
}
"""
FLAT = "const unsigned tid = threadIdx.x, width = blockDim.x;"
DEEP = "const unsigned tid = threadIdx.y * blockDim.x + threadIdx.x, width = blockDim.x * blockDim.y;"

# A rule's first choices, up to the bar, end the expansion: they are what is left where it has become deep.
RULES = {
    # ---- expressions of one thread: numbers, indices into x and k, conditions
    "F": [
        "a", "b", "p.a", "<num>", "x[<at>]", "|", "(<F> + <F>)", "(<F> - <F>)", "(<F> * <num>)", "fmaxf(<F>, <F>)",
        "fminf(<F>, <F>)", "mix(<F>, <F>)", "(<U> & 1u ? <F> : <F>)", "(float)(<U> & 255u)", "fabsf(<F>)",
        "scaled<3 >(<F>)",
        "expf(-fabsf(<F>))", "sqrtf(fabsf(<F>))", "(<F> > <F> ? <F> : <F>)", "__fmaf_rn(<F>, <num>, <F>)",
        "(<F> / (1.0f + fabsf(<F>)))",
    ],
    "U": [
        "u", "v", "tid", "n", "blockIdx.x", "k[<at>]", "<prime>", "|", "(<U> + <U>)", "(<U> * <U>)", "(<U> ^ <U>)",
        "(<U> - <U>)", "(<U> >> 3)", "turn(<U>, <prime>)", "(<U> < <U> ? <U> : <U>)", "__popc(<U>)", "(<U> % 17u)",
        "min(<U>, <U>)", "(unsigned)(int)(<U> % 100u)",
    ],
    "at": ["u % n", "v % n", "gid % n", "(tid * 7u + 3u) % n", "(u ^ 5u) % n", "v % 13u % n"],
    "num": ["0.25f", "1.5f", "-2.0f", "3.0f", "0.125f"],
    "prime": ["2u", "3u", "5u", "7u", "31u"],
    "C": ["<U> & 1u", "<U> < <U>", "<F> > <F>", "tid % 3 == 1", "tid < 17", "tid < width / 2", "tid < m"],
    # ---- statements of one thread
    "one": [
        "<f> <op> <F>;", "<f> <op> <F>;", "<w> <op> <U>;", "<w> ^= <U>;", "u++;", "--v;", "|",
        "bump(&<w>, <U>);", "add_to(<f>, <F>);",
        "{ <auto> <g!> = <F>; a += <g> * 0.5f; }",
        "r[<prime> & 3u] = <F>; <f> += r[<w> & 3u];", "p.a += <F>; p.b ^= <U>; b += p.a;", "if (<C>) { <one> }",
        "if (<C>) { <one> } else { <one> <one> }", "for (unsigned <j!> = 0; <j> < <turns>; ++<j>) { <one> }",
        "for (int <j!> = 0; <j> < 5; ++<j>) { <one> if (<C>) <leave>; <one> }",
        "atomicAdd(&hits[<U> & 7u], <U> & 3u);",
        "{ float& <h!> = <f>; <h> <op> <F>; }", "{ const float <o!> = <F>; { float a = <o>; b += a; } }",
        "{ int <d!> = <U> & 1u; do { <one> } while (++<d> < 3); }",
        "switch (<U> % 4u) { case 0: <f> += 1; break; case 1: u ^= 5u; case 2: { <one> break; } default: a *= 2; }",
        "{ auto <l!> = [&](float c) { return c + <F>; }; <f> = <l>(<f>) * 0.5f; }",
    ],
    "f": ["a", "b"], "w": ["u", "v"], "op": ["=", "+=", "-="], "turns": ["3", "m % 5", "(<w> & 3u)"],
    "auto": ["float", "const float", "auto"], "leave": ["break", "continue"],
    # ---- loops over strides; what they write to y belongs to the index
    "body": ["<one>", "<one> <one>", "u ^= <i> * 3u; <one>", "a += x[<i>];", "b = fmaxf(b, x[<i>]); <one>",
             "if (<C>) continue; <one>", "<one> if (<C>) break; <one>"],
    "own": ["", "y[<i>] = a + <num>;", "y[n + <i>] = <F>;", "y[2u * n + <i>] += <F>;",
    "if (<C>) y[3u * n + <i>] = b;"],
    "inner": ["for (unsigned <j!> = threadIdx.x; <j> < 40; <j> += blockDim.x) { <one> u += <i> ^ <j>; }"],
    "unroll": ["", "", "\n#pragma unroll 4\n"],
    "loop": [
        "<unroll>for (int <i!> = <tid>; <i> < (int)n; <i> += <width>) { <body> }",
        "<unroll>for (unsigned <i!> = gid; <i> < <bound>; <i> += all) { <own> <body> }",
        "for (long long <i!> = <tid>; <i> < <bound>; <i> += <width>) { <body> }",
        "for (size_t <i!> = <gid>; <i> < <bound>; <i> = <i> + all) { <own> <body> }",
        "for (int <i!> = <gid>; <i> < (int)(<bound>); <i> += (int)all) { <own> <body> }",
        "{ unsigned <i!> = <tid>; while (<i> < <bound>) { <one> <i> += <width>; } }",
        "for (const float* <q!> = x + <tid>; <q> < x + <bound>; <q> += <width>) { <f> += *<q>; }",
        "for (int <i!> = (int)n - 1 - (int)tid; <i> >= 0; <i> -= (int)width) { <body> }",
        "for (unsigned <i!> = tid; <i> < n; <i> += 2 * width) { a += x[<i>]; if (<i> + width < n) b += x[<i>]; }",
        "for (int <i!> = tid, <e!> = (int)n; <i> < <e>; <i> += width) { float a = x[<i>]; b = fmaxf(b, a); }",
        "for (unsigned <i!> = threadIdx.y; <i> < m; <i> += blockDim.y) <inner>",
        "for (unsigned <i!> = tid; <i> < 256; <i> += width) { s[<i>] = <F>; } <sync> a += s[<U> & 255u]; <sync>",
    ],
    "tid": ["tid", "threadIdx.x + blockDim.x * threadIdx.y", "tid + 0"],
    "width": ["width", "blockDim.x * blockDim.y"], "sync": ["__syncthreads();"],
    "gid": ["gid", "blockIdx.x * width + tid", "tid + width * blockIdx.x"], "bound": ["n", "m", "n / 2", "n - 1"],
    # ---- statements of a block, whose threads come by together
    "all": [
        "s[tid] = <F>; <sync> <f> += s[(tid + <prime>) % width]; <sync>",
        "s[tid] = a; <sync> for (unsigned o = 128; o > 0; o >>= 1) { <tree> <sync> } b += s[0] * 0.01f; <sync>",
        "b += meet(<F>, s, tid, width) * 0.25f;", "<sync> u += hits[<prime> & 7u]; <sync>",
        "if (tid == 0) s[0] = a; <sync> b += s[0]; <sync>", "<loop>", "<loop>", "<loop>",
        "<one>", "<one>",
        "|", "if (<same>) { <all> }", "if (<same>) { <all> <all> } else { <all> }",
        "for (int <t!> = 0; <t> < <times>; ++<t>) { <all> <all> }", "{ float <g!> = <F>; <all> a += <g>; }",
    ],
    "tree": ["if (tid < o && tid + o < width) s[tid] += s[tid + o];"],
    "same": ["n % 2 == 0", "m > 5", "blockIdx.x & 1", "blockIdx.x == 0", "width > 40", "n > 100 && m < 90"],
    "times": ["2", "3", "(int)(m % 3)"],
    "warp": [
        "<f> += __shfl_xor_sync(FULL, <f>, <prime>);", "a = fmaxf(a, __shfl_down_sync(FULL, a, <prime>));",
        "b += __shfl_sync(FULL, b, <prime>);", "u ^= __shfl_up_sync(FULL, u, <prime>);",
        "u += __ballot_sync(FULL, <C>);",
        "v += __any_sync(FULL, <C>);", "for (int o = 16; o > 0; o /= 2) a += __shfl_xor_sync(FULL, a, o);",
    ],
}  # fmt: skip


class Fuzz:
    """A kernel's text, and how it may be launched.

    Attributes:
        name: The kernel's.
        text: It, without `HEAD`.
        is_flat: Whether its blocks have one dimension.
        has_warps: Whether its blocks have to be whole warps.
    """

    def __init__(self, rng: random.Random, name: str) -> None:
        self._rng, self._count = rng, 0
        self.name = name
        self.is_flat, self.has_warps = rng.random() < 0.7, rng.random() < 0.5
        begin = BEGIN.replace("<name>", name).replace("<places>", FLAT if self.is_flat else DEEP)
        if not self.has_warps and rng.random() < 0.2:
            begin += "  if (tid >= m) return;\n"
        names = ["all", "all", "all", "warp" if self.has_warps else "all"]
        lines = [self._expand(f"<{rng.choice(names)}>", 5, {}) for _ in range(rng.randrange(3, 8))]
        self.text = begin + "".join(f"  {line}\n" for line in lines) + END

    def _expand(self, text: str, depth: int, names: dict[str, str]) -> str:
        def replace(found: re.Match[str]) -> str:
            word = found[1]
            if word.endswith("!"):
                self._count += 1
                own[word[:-1]] = f"{word[:-1]}{self._count}"
                return own[word[:-1]]
            return own[word] if word in own else self._expand(self._choose(word, depth), depth - 1, own)

        own = dict(names)
        return re.sub(r"<(\w+!?)>", replace, text)

    def _choose(self, rule: str, depth: int) -> str:
        choices = RULES[rule]
        ends = choices.index("|") if "|" in choices else len(choices)
        return self._rng.choice(choices[:ends] if depth <= 0 else choices[:ends] + choices[ends + 1 :])

    def shape(self, threads: int) -> int | tuple[int, int]:
        """Return a block of so many threads."""
        height = next(height for height in (4, 2, 1) if threads % height == 0)
        return threads if self.is_flat or height == 1 else (threads // height, height)


def kernels(seed: int, count: int) -> list[Fuzz]:
    """Return the kernels of a seed, the same each time."""
    rng = random.Random(seed)
    return [Fuzz(rng, f"kernel_{seed}_{number}") for number in range(count)]
