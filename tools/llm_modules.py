"""Decoders of language models as PyTorch modules, for export_llm.py.

They follow the structure that the models' authors published. One module serves all families;
`Structure` reads their differences from a `config.json`. Parameters have the names of transformers,
so the tensors of a checkpoint load directly; `glm_names` renames those of ChatGLM2.

There are two forms. `plain` is the graph that exporters usually write: `attention_mask` [batch,
keys] of ones, and a KV cache [batch, heads, keys, size] that is an input, is extended, and is a
whole output. `paper` is the form of the paper *Transformer-Lite*, section 2.3: the mask is an input
[1, 1, N, keys] that is added to the scores, the cache is sequence first, [1, keys, heads, size],
and only its new rows are an output. ChatGLM2 has hidden states and caches [keys, batch, heads,
size] in both forms.
"""

import math
import re

import torch
from torch import nn

# Added to masked scores.
HIDDEN = -65504.0


class Structure:
    """Sizes and features of a decoder, from its `config.json`."""

    def __init__(self, config):
        kind = config["model_type"]
        get = config.get
        self.kind = kind
        self.glm = kind == "chatglm"
        self.gemma = kind.startswith("gemma")
        self.hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        if self.glm:
            self.layers = config["num_layers"]
            self.vocab = config["padded_vocab_size"]
            self.inner = config["ffn_hidden_size"]
            self.kv_heads = config["multi_query_group_num"] if get("multi_query_attention") else self.heads
            self.size = config["kv_channels"]
            self.eps = get("layernorm_epsilon", 1e-5)
            self.longest = get("seq_length", 32768)
            self.turned = self.size // 2
            self.theta = 10000.0 * get("rope_ratio", 1.0)
        else:
            self.layers = config["num_hidden_layers"]
            self.vocab = config["vocab_size"]
            self.inner = config["intermediate_size"]
            self.kv_heads = get("num_key_value_heads") or self.heads
            self.size = get("head_dim") or self.hidden // self.heads
            self.eps = get("rms_norm_eps", 1e-6)
            self.longest = get("max_position_embeddings", 2048)
            self.turned = int(self.size * get("partial_rotary_factor", 1.0))
            self.theta = get("rope_theta", 10000.0)
        self.scaling = get("rope_scaling")
        self.local_theta = get("rope_local_base_freq") if kind == "gemma3_text" else None
        self.plus_one = self.gemma
        self.around = kind in ("gemma2", "gemma3_text")
        self.qk_norm = kind in ("qwen3", "gemma3_text")
        self.qkv_bias = kind == "qwen2" or self.glm and get("add_qkv_bias", True) or get("attention_bias", False)
        self.fused = kind == "phi3" or self.glm
        self.tanh_gelu = self.gemma
        self.scale = (get("query_pre_attn_scalar") or self.size) ** -0.5
        self.cap = get("attn_logit_softcapping") if kind == "gemma2" else None
        self.final_cap = get("final_logit_softcapping") if kind == "gemma2" else None
        self.tied = get("tie_word_embeddings", self.gemma)
        window = get("sliding_window")
        if kind == "qwen2" and not get("use_sliding_window"):
            window = None
        local = {
            "gemma2": lambda i: i % 2 == 0,
            "gemma3_text": lambda i: (i + 1) % get("sliding_window_pattern", 6) != 0,
            "mistral": lambda i: True,
            "phi3": lambda i: True,
        }.get(kind, lambda i: False)
        self.windows = [window if window and local(i) else None for i in range(self.layers)]


def frequencies(size, theta, scaling):
    """Angles per position, and the factor on sine and cosine, of a rotary embedding of `size`
    elements."""
    kind = (scaling or {}).get("rope_type") or (scaling or {}).get("type")
    factor = (scaling or {}).get("factor", 1.0)
    if kind == "ntk":
        theta = theta * factor ** (size / (size - 2))
    inverse = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if kind in (None, "default", "ntk"):
        return inverse, 1.0
    if kind == "linear":
        return inverse / factor, 1.0
    old = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        waves = 2 * math.pi / inverse
        smooth = ((old / waves - low) / (high - low)).clamp(0, 1)
        return inverse * (smooth + (1 - smooth) / factor), 1.0
    if kind == "yarn":
        def place(turns):
            return size * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(place(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(place(scaling.get("beta_slow", 1))), size - 1)
        ramp = ((torch.arange(size // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        return inverse * (1 - ramp) + inverse / factor * ramp, scaling.get("attention_factor") or 0.1 * math.log(factor) + 1.0
    raise ValueError(f"rope_scaling: unknown type {kind}; expected linear, ntk, llama3 or yarn")


class RmsNorm(nn.Module):
    def __init__(self, size, eps, plus_one):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps, self.plus_one = eps, plus_one

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (1.0 + self.weight) if self.plus_one else self.weight * x


def turn_halves(x, cos, sin):
    """Rotates element i of a head with element i + turned / 2; elements after `turned` do not
    change."""
    turned = cos.shape[-1]
    stays = x[..., turned:] if x.shape[-1] > turned else None
    x = x[..., :turned]
    half = torch.cat((-x[..., turned // 2:], x[..., : turned // 2]), dim=-1)
    y = x * cos + half * sin
    return y if stays is None else torch.cat((y, stays), dim=-1)


def turn_neighbours(x, angles):
    """Rotates elements 2 i and 2 i + 1 of [s, b, heads, size]; angles are [s, b, pairs, 2], cosines
    first."""
    s, b, heads, _ = x.shape
    pairs = angles.shape[-2]
    x, stays = x[..., : 2 * pairs], x[..., 2 * pairs:]
    x = x.reshape(s, -1, heads, pairs, 2)
    angles = angles.view(s, -1, 1, pairs, 2)
    y = torch.stack([
        x[..., 0] * angles[..., 0] - x[..., 1] * angles[..., 1],
        x[..., 1] * angles[..., 0] + x[..., 0] * angles[..., 1],
    ], -1)
    return torch.cat((y.flatten(3), stays), dim=-1)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        q, kv = s.heads * s.size, s.kv_heads * s.size
        if s.fused:
            self.qkv_proj = nn.Linear(s.hidden, q + 2 * kv, bias=s.qkv_bias)
        else:
            self.q_proj = nn.Linear(s.hidden, q, bias=s.qkv_bias)
            self.k_proj = nn.Linear(s.hidden, kv, bias=s.qkv_bias)
            self.v_proj = nn.Linear(s.hidden, kv, bias=s.qkv_bias)
        self.o_proj = nn.Linear(q, s.hidden, bias=False)
        if s.qk_norm:
            self.q_norm = RmsNorm(s.size, s.eps, s.plus_one)
            self.k_norm = RmsNorm(s.size, s.eps, s.plus_one)

    def heads(self, x):
        """Queries, keys and values, [.., heads, size] each."""
        s = self.s
        lead = x.shape[:2]
        if s.fused:
            q, k, v = self.qkv_proj(x).split([s.heads * s.size, s.kv_heads * s.size, s.kv_heads * s.size], dim=-1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.view(*lead, s.heads, s.size)
        k, v = (x.view(*lead, s.kv_heads, s.size) for x in (k, v))
        return (self.q_norm(q), self.k_norm(k), v) if s.qk_norm else (q, k, v)

    def weights(self, scores, mask):
        if self.s.cap:
            scores = torch.tanh(scores / self.s.cap) * self.s.cap
        return torch.softmax(scores + mask, dim=-1)


class BatchFirst(Attention):
    """Hidden states [b, s, hidden]."""

    def repeated(self, x):
        """[b, kv_heads, t, d] to [b, heads, t, d]."""
        groups = self.s.heads // self.s.kv_heads
        if groups == 1:
            return x
        b, kv, t, d = x.shape
        return x[:, :, None].expand(b, kv, groups, t, d).reshape(b, kv * groups, t, d)

    def forward(self, x, mask, angles, past, paper):
        q, k, v = self.heads(x)
        cos, sin = angles
        if paper:
            q, k = turn_halves(q, cos.unsqueeze(2), sin.unsqueeze(2)), turn_halves(k, cos.unsqueeze(2), sin.unsqueeze(2))
            given = (k, v)
            k, v = torch.cat((past[0], k), dim=1).transpose(1, 2), torch.cat((past[1], v), dim=1).transpose(1, 2)
            q = q.transpose(1, 2)
        else:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            q, k = turn_halves(q, cos.unsqueeze(1), sin.unsqueeze(1)), turn_halves(k, cos.unsqueeze(1), sin.unsqueeze(1))
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
            given = (k, v)
        k, v = self.repeated(k), self.repeated(v)
        weights = self.weights(torch.matmul(q, k.transpose(2, 3)) * self.s.scale, mask)
        y = torch.matmul(weights, v).transpose(1, 2).reshape(*x.shape[:2], self.s.heads * self.s.size)
        return self.o_proj(y), given


class SequenceFirst(Attention):
    """Hidden states [s, b, hidden], as in ChatGLM2."""

    def forward(self, x, mask, angles, past, paper):
        q, k, v = self.heads(x)
        q, k = turn_neighbours(q, angles), turn_neighbours(k, angles)
        new = (k, v)
        k, v = torch.cat((past[0], k), dim=0), torch.cat((past[1], v), dim=0)
        given = new if paper else (k, v)
        groups = self.s.heads // self.s.kv_heads
        k, v = (t.unsqueeze(-2).expand(-1, -1, -1, groups, -1).reshape(*t.shape[:2], self.s.heads, self.s.size) for t in (k, v))
        s, b = q.shape[:2]
        joined = b * self.s.heads
        q, k, v = (t.reshape(t.shape[0], joined, self.s.size).transpose(0, 1) for t in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2)) * self.s.scale
        weights = self.weights(scores.view(b, self.s.heads, s, -1), mask).view(joined, s, -1)
        y = torch.bmm(weights, v).view(b, self.s.heads, s, self.s.size).permute(2, 0, 1, 3)
        return self.o_proj(y.reshape(s, b, self.s.heads * self.s.size)), given


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        if s.fused:
            self.gate_up_proj = nn.Linear(s.hidden, 2 * s.inner, bias=False)
        else:
            self.gate_proj = nn.Linear(s.hidden, s.inner, bias=False)
            self.up_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1) if self.s.fused else (self.gate_proj(x), self.up_proj(x))
        gate = nn.functional.gelu(gate, approximate="tanh") if self.s.tanh_gelu else nn.functional.silu(gate)
        return self.down_proj(gate * up)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        norm = lambda: RmsNorm(s.hidden, s.eps, s.plus_one)
        self.self_attn = SequenceFirst(s) if s.glm else BatchFirst(s)
        self.mlp = Mlp(s)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.around = s.around
        if s.around:
            self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()

    def forward(self, x, mask, angles, past, paper):
        y, given = self.self_attn(self.input_layernorm(x), mask, angles, past, paper)
        if self.around:
            x = x + self.post_attention_layernorm(y)
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))), given
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), given


class Decoder(nn.Module):
    """`forward(input_ids, attention_mask, position_ids, key 0, value 0, key 1, ..)` returns the
    logits and the keys and values in its form."""

    def __init__(self, config, paper):
        super().__init__()
        s = self.s = Structure(config)
        self.paper = paper
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.model.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.model.norm = RmsNorm(s.hidden, s.eps, s.plus_one)
        self.lm_head = nn.Linear(s.hidden, s.vocab, bias=False)
        if s.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.inverse, self.factor = frequencies(s.turned, s.theta, s.scaling)
        if s.local_theta:
            self.local_inverse = frequencies(s.turned, s.local_theta, None)[0]
        if s.glm:
            angles = torch.outer(torch.arange(s.longest, dtype=torch.float32), self.inverse)
            self.table = torch.stack([angles.cos(), angles.sin()], dim=-1)

    def angles(self, positions, inverse, factor):
        if self.s.glm:
            return self.table[positions].transpose(0, 1)
        angles = positions[:, :, None].float() * inverse[None, None, :]
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)

    def masks(self, mask, length):
        """Masks to add to the scores, by window size: None, and each sliding window of the
        layers."""
        keys = mask.shape[-1]
        places = torch.arange(keys)
        rows = (torch.arange(length) + (keys - length))[:, None]
        if self.paper:
            whole = mask
        else:
            seen = (places <= rows)[None, None] & mask[:, None, None, :].bool()
            whole = torch.where(seen, torch.tensor(0.0), torch.tensor(HIDDEN))
        far = lambda window: torch.where(rows - places >= window, torch.tensor(HIDDEN), torch.tensor(0.0))
        # The minimum instead of the sum, which would exceed the range of f16.
        return {w: whole if w is None else torch.minimum(whole, far(w)) for w in set(self.s.windows)}

    def forward(self, input_ids, attention_mask, position_ids, *past):
        s = self.s
        x = self.model.embed_tokens(input_ids)
        if s.gemma:
            x = x * s.hidden ** 0.5
        if s.glm:
            x = x.transpose(0, 1)
        masks = self.masks(attention_mask, input_ids.shape[1])
        angles = self.angles(position_ids, self.inverse, self.factor)
        local = self.angles(position_ids, self.local_inverse, 1.0) if s.local_theta else angles
        given = []
        for i, layer in enumerate(self.model.layers):
            w = s.windows[i]
            turn = local if w else angles
            x, pair = layer(x, masks[w], turn, past[2 * i: 2 * i + 2], self.paper)
            given.extend(pair)
        logits = self.lm_head(self.model.norm(x))
        if s.final_cap:
            logits = torch.tanh(logits / s.final_cap) * s.final_cap
        return (logits.transpose(0, 1) if s.glm else logits, *given)

    def cache_axes(self):
        """Sizes of an empty cache and the axis that grows."""
        s = self.s
        if s.glm:
            return [0, 1, s.kv_heads, s.size], 0
        return ([1, 0, s.kv_heads, s.size], 1) if self.paper else ([1, s.kv_heads, 0, s.size], 2)


GLM = {
    r"transformer\.embedding\.word_embeddings\.": "model.embed_tokens.",
    r"transformer\.output_layer\.": "lm_head.",
    r"transformer\.encoder\.final_layernorm\.": "model.norm.",
    r"transformer\.encoder\.layers\.": "model.layers.",
    r"\.self_attention\.query_key_value\.": ".self_attn.qkv_proj.",
    r"\.self_attention\.dense\.": ".self_attn.o_proj.",
    r"\.mlp\.dense_h_to_4h\.": ".mlp.gate_up_proj.",
    r"\.mlp\.dense_4h_to_h\.": ".mlp.down_proj.",
}


def glm_names(tensors):
    """The tensors of a ChatGLM2 checkpoint with the names of `Decoder`, without its table of
    angles."""
    out = {}
    for name, tensor in tensors.items():
        for pattern, new in GLM.items():
            name = re.sub(pattern, new, name)
        if "rotary_pos_emb" not in name:
            out[name] = tensor
    return out
