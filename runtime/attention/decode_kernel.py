"""Attention of one query token per request over paged keys, as two Triton kernels.

Keys are read in place, each once for all query heads that share it. The keys of a request are split among
`NUM_SPLITS` programs, so that few requests also fill a GPU; the second kernel combines the splits. Any head
widths, block size and float dtype; windows, capped scores and sinks.

Shapes: N requests, B blocks of the longest; H query heads, K key heads, G = H / K; D key width, E value
width; S splits. Widths and G are padded to powers of two; G to at least 16, the fewest rows of a product.
"""

import triton
import triton.language as tl


@triton.jit
def attend_split(
    q_NHD,
    keys_SPKD,
    values_SPKE,
    table_NB,
    num_keys_N,
    sinks_H,
    part_NHSE,
    top_NHS,
    total_NHS,
    scaling,
    softcap,
    window,
    q_stride_n,
    q_stride_h,
    key_stride_s,
    key_stride_p,
    key_stride_k,
    value_stride_s,
    value_stride_p,
    value_stride_k,
    table_stride_n,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Compute one split of a key head of a request: weighted values, largest score, sum of weights."""
    n = tl.program_id(0)
    key_head = tl.program_id(1)
    split = tl.program_id(2)
    num_keys = tl.load(num_keys_N + n)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(num_keys - window, 0)
    first_tile = first // TILE
    num_tiles = tl.cdiv(num_keys, TILE) - first_tile
    tiles_each = tl.cdiv(num_tiles, NUM_SPLITS)
    begin = first_tile + split * tiles_each
    end = tl.minimum(begin + tiles_each, first_tile + num_tiles)

    g = tl.arange(0, GROUP_PADDED)
    d = tl.arange(0, KEY_PADDED)
    e = tl.arange(0, VALUE_PADDED)
    head = key_head * GROUP + g
    is_head = g < GROUP
    is_query = is_head[:, None] & (d < KEY_WIDTH)[None, :]
    q_GD = tl.load(q_NHD + n * q_stride_n + head[:, None] * q_stride_h + d[None, :], is_query, 0.0)

    top_G = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total_G = tl.zeros([GROUP_PADDED], tl.float32)
    out_GE = tl.zeros([GROUP_PADDED, VALUE_PADDED], tl.float32)
    if HAS_SINKS:  # a sink is one more score, without a value
        top_G = tl.where(split == 0, tl.load(sinks_H + head, is_head, 0.0).to(tl.float32), top_G)
        total_G = tl.where(split == 0, 1.0, total_G)

    for tile in range(begin, end):
        position = tile * TILE + tl.arange(0, TILE)
        is_seen = position < num_keys
        block = tl.load(table_NB + n * table_stride_n + position // BLOCK_SIZE, is_seen, 0).to(tl.int64)
        if HAS_WINDOW:
            is_seen = is_seen & (position >= first)
        offset = position % BLOCK_SIZE
        key_at = block * key_stride_s + offset * key_stride_p + key_head * key_stride_k
        is_key = is_seen[None, :] & (d < KEY_WIDTH)[:, None]
        k_DL = tl.load(keys_SPKD + key_at[None, :] + d[:, None], is_key, 0.0)
        score_GL = tl.dot(q_GD, k_DL, input_precision="ieee") * scaling
        if HAS_SOFTCAP:  # tanh(x) is 2 sigmoid(2 x) - 1
            score_GL = softcap * (2.0 * tl.sigmoid(2.0 * score_GL / softcap) - 1.0)
        score_GL = tl.where(is_seen[None, :], score_GL, float("-inf"))
        new_top_G = tl.maximum(top_G, tl.max(score_GL, 1))
        weight_GL = tl.exp(score_GL - new_top_G[:, None])
        scale_G = tl.exp(top_G - new_top_G)
        total_G = total_G * scale_G + tl.sum(weight_GL, 1)
        value_at = block * value_stride_s + offset * value_stride_p + key_head * value_stride_k
        is_value = is_seen[:, None] & (e < VALUE_WIDTH)[None, :]
        v_LE = tl.load(values_SPKE + value_at[:, None] + e[None, :], is_value, 0.0)
        out_GE = out_GE * scale_G[:, None] + tl.dot(weight_GL.to(v_LE.dtype), v_LE, input_precision="ieee")
        top_G = new_top_G

    at_GS = (n * NUM_HEADS + head) * NUM_SPLITS + split
    is_out = is_head[:, None] & (e < VALUE_WIDTH)[None, :]
    if NUM_SPLITS == 1:
        out_GE = out_GE / total_G[:, None]
    else:
        tl.store(top_NHS + at_GS, top_G, is_head)
        tl.store(total_NHS + at_GS, total_G, is_head)
    to_GE = part_NHSE + at_GS[:, None] * VALUE_WIDTH + e[None, :]
    tl.store(to_GE, out_GE.to(part_NHSE.dtype.element_ty), is_out)


@triton.jit
def join_splits(
    part_NHSE,
    top_NHS,
    total_NHS,
    out_NHE,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Combine the splits of one head of one request into its output."""
    at = tl.program_id(0)
    s = tl.arange(0, NUM_SPLITS)
    e = tl.arange(0, VALUE_PADDED)
    is_value = e < VALUE_WIDTH
    top_S = tl.load(top_NHS + at * NUM_SPLITS + s)
    scale_S = tl.exp(top_S - tl.max(top_S, 0))
    total = tl.sum(tl.load(total_NHS + at * NUM_SPLITS + s) * scale_S, 0)
    from_SE = part_NHSE + (at * NUM_SPLITS + s)[:, None] * VALUE_WIDTH + e[None, :]
    part_SE = tl.load(from_SE, is_value[None, :], 0.0)
    out_E = tl.sum(part_SE * scale_S[:, None], 0) / total
    tl.store(out_NHE + at * VALUE_WIDTH + e, out_E.to(out_NHE.dtype.element_ty), is_value)
