"""Published layouts: built here with exactly their names, shapes and flags, computed by hand, and refused where wrong."""

import json
import os
import pickle
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import minispec as ms
from minispec.checkpoints import export_drafter, load_drafter
from minispec.checkpoints.eagle import read_eagle
from minispec.checkpoints.files import new_folder
from minispec.checkpoints.medusa import read_medusa
from minispec.cli import main

VOCAB, WIDTH, LAYERS, HEADS, KV, SIZE, MLP = 20, 16, 7, 4, 2, 4, 32  # of the toy; SIZE of a head's vectors
IDS = [1, 4, 5, 11, 19]
THETA = 10000.0


@pytest.fixture(scope="module")
def lm():
    return ms.toy(vocab_size=VOCAB, seed=0, num_hidden_layers=LAYERS)


def noise(shapes, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(folder, config, tensors, file="model.safetensors"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: x.contiguous() for name, x in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


def same_files(one, other):
    return {f.name: f.read_bytes() for f in one.iterdir()} == {f.name: f.read_bytes() for f in other.iterdir()}


# --- Medusa ---


def medusa_blocks(layout, count=2, depth=2, bias=True):
    name = "blocks.{}.layers.{}." if layout == "vllm" else "{}.{}.linear."
    shapes = {}
    for i in range(count):
        for at in range(depth):
            shapes[name.format(i, at) + "weight"] = (WIDTH, WIDTH)
            if bias:
                shapes[name.format(i, at) + "bias"] = (WIDTH,)
    return shapes


V1 = {"medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "someone/theirs"}
VLLM = {"model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": 2, "num_hidden_layers": 2}
VLLM |= {"hidden_size": WIDTH, "vocab_size": VOCAB, "truncated_vocab_size": VOCAB, "medusa_fc_bias": True}
OWN_V1 = {"0.2.weight": (VOCAB, WIDTH), "1.2.weight": (VOCAB, WIDTH)}
OWN_VLLM = {"lm_heads.0.weight": (VOCAB, WIDTH), "lm_heads.1.weight": (VOCAB, WIDTH)}
CUT = {"original_lm_head": True, "truncated_vocab_size": len(IDS)}
MAP = {"token_map": torch.tensor(IDS)}

# name: (config, tensors, file)
MEDUSA = {
    "v1 pt": (V1, noise(medusa_blocks("v1") | OWN_V1), "medusa_lm_head.pt"),
    "v1 safetensors": (V1, noise(medusa_blocks("v1") | OWN_V1), "medusa_lm_head.safetensors"),
    "v2 pt": (V1 | {"version": "2"}, noise(medusa_blocks("v1")), "medusa_lm_head.pt"),
    "v2 safetensors": (V1 | {"version": "2"}, noise(medusa_blocks("v1")), "medusa_lm_head.safetensors"),
    "vllm": (VLLM, noise(medusa_blocks("vllm") | OWN_VLLM), "model.safetensors"),
    "vllm prefixed": (
        VLLM,
        {f"medusa_heads.{n}": x for n, x in noise(medusa_blocks("vllm") | OWN_VLLM).items()},
        "model.safetensors",
    ),
    "vllm without biases": (
        {name: value for name, value in VLLM.items() if name != "medusa_fc_bias"},
        noise(medusa_blocks("vllm", bias=False) | OWN_VLLM),
        "model.safetensors",
    ),
    "vllm one matrix": (
        VLLM | {"original_lm_head": True},
        noise(medusa_blocks("vllm") | {"lm_heads.0.weight": (VOCAB, WIDTH)}),
        "model.safetensors",
    ),
    "vllm some ids": (
        VLLM | CUT,
        noise(medusa_blocks("vllm") | {"lm_heads.0.weight": (len(IDS), WIDTH)}) | MAP,
        "model.safetensors",
    ),
    "vllm ids cut on reading": (
        VLLM | CUT,
        noise(medusa_blocks("vllm") | {"lm_heads.0.weight": (VOCAB, WIDTH)}) | MAP,
        "model.safetensors",
    ),
}


def medusa_by_hand(lm, tensors, state):
    """{id: logit} of each head, from published names alone."""
    tensors = {name.removeprefix("medusa_heads."): x.double() for name, x in tensors.items()}
    out = []
    for i in range(2):
        x = state
        for at in range(2):
            name = f"blocks.{i}.layers.{at}." if f"blocks.{i}.layers.{at}.weight" in tensors else f"{i}.{at}.linear."
            y = tensors[name + "weight"] @ x + tensors.get(name + "bias", torch.zeros(WIDTH))
            x = x + y * y.sigmoid()
        found = [n for n in (f"{i}.2.weight", f"lm_heads.{i}.weight", "lm_heads.0.weight") if n in tensors]
        matrix = tensors[found[0]] if found else lm.model.lm_head.weight
        ids = tensors["token_map"].long().tolist() if "token_map" in tensors else list(range(VOCAB))
        rows = range(len(ids)) if len(matrix) == len(ids) else ids
        out.append({id: float(matrix[row] @ x) for id, row in zip(ids, rows, strict=True)})
    return out


@pytest.mark.parametrize("layout", MEDUSA)
def test_medusa_layouts_give_the_logits_computed_by_hand(lm, tmp_path, layout):
    config, tensors, file = MEDUSA[layout]
    net, own = read_medusa(write(tmp_path, config, tensors, file), lm)
    state = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for got, wanted in zip(net(state), medusa_by_hand(lm, tensors, state), strict=True):
        assert net.vocabulary.tolist() == list(wanted)
        torch.testing.assert_close(got, torch.tensor(list(wanted.values()), dtype=torch.float64))
    assert own == {}
    generation = ms.generate(lm, torch.tensor([3, 1, 4]), load_drafter("medusa", lm, tmp_path), max_new_tokens=20)
    assert generation.tokens.tolist() == ms.generate(lm, torch.tensor([3, 1, 4]), max_new_tokens=20).tokens.tolist()
    assert max(len(r.drafted) for r in generation.trace.rounds) == 2  # a chain of both heads


@pytest.mark.parametrize("layout", ["vllm", "original"])
@pytest.mark.parametrize("kind", MEDUSA)
def test_medusa_written_and_read_again_gives_the_same_logits(lm, tmp_path, kind, layout):
    drafter = load_drafter("medusa", lm, write(tmp_path / "in", *MEDUSA[kind]))
    if "ids" in kind or (layout == "original" and "one matrix" in kind):
        with pytest.raises(ValueError, match="a matrix of their own, have no place|not the target's have no place"):
            export_drafter(drafter, lm, tmp_path / "out", layout)
        assert not list(tmp_path.glob("*out*"))
        return
    export_drafter(drafter, lm, tmp_path / "out", layout)
    again, _ = read_medusa(tmp_path / "out", lm)
    export_drafter(load_drafter("medusa", lm, tmp_path / "out"), lm, tmp_path / "twice", layout)
    assert same_files(tmp_path / "out", tmp_path / "twice")
    state = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(again(state), drafter.net(state)) and torch.equal(again.vocabulary, drafter.net.vocabulary)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if layout == "vllm":
        assert config["medusa_fc_bias"] is True and config["original_lm_head"] is (drafter.net.shared is not None)
        assert config["truncated_vocab_size"] == config["vocab_size"] == VOCAB
    else:
        assert config["version"] == ("2" if kind.startswith("v2") else "1")
        stored = torch.load(tmp_path / "out" / "medusa_lm_head.pt", weights_only=True)
        assert ("0.2.weight" in stored) == (not kind.startswith("v2"))
        opened = load_drafter("medusa", lm, tmp_path / "out")
        trace = ms.generate(lm, torch.tensor([3, 1, 4]), opened, max_new_tokens=4).trace
        assert trace.extra_bytes == sum(w.nbytes for w in opened.net.parameters()), "the target's own matrix is not extra"


def without(tensors, *names):
    assert all(name in tensors for name in names)
    return {name: x for name, x in tensors.items() if name not in names}


def changed(tensors, name, change):
    return tensors | {name: change(tensors[name])}


BROKEN_MEDUSA = {
    "a block's tensor is missing": ("v1 pt", {}, lambda t: without(t, "1.0.linear.bias"), "lack 1.0.linear.bias"),
    "one head's matrix is missing": ("v1 pt", {}, lambda t: without(t, "1.2.weight"), "lack 1.2.weight"),
    "vllm's matrix is missing": ("vllm", {}, lambda t: without(t, "lm_heads.1.weight"), "lack lm_heads.1.weight"),
    "something else is there": ("v2 pt", {}, lambda t: t | {"extra": torch.ones(1)}, "not expected: extra"),
    "a block is too narrow": (
        "v2 pt",
        {},
        lambda t: t | {"0.0.linear.weight": torch.ones(8, 8)},
        r"\[8, 8\], not \[16, 16\]",
    ),
    "another vocabulary": ("v1 pt", {}, lambda t: t | {"0.2.weight": torch.ones(VOCAB + 8, WIDTH)}, r"\[28, 16\], not \[20"),
    "fewer heads than said": ("v1 pt", {"medusa_num_heads": 5}, None, "says 5 heads, but the weights hold 2"),
    "other blocks than said": ("v1 pt", {"medusa_num_layers": 1}, None, "says 1 blocks a head, but the weights hold 2"),
    "vllm: other blocks": ("vllm", {"num_hidden_layers": 3}, None, "says 3 blocks a head"),
    "biases, but no flag": ("vllm", {"medusa_fc_bias": False}, None, "not expected: blocks.0.layers.0.bias"),
    "a flag, but no biases": ("vllm without biases", {"medusa_fc_bias": True}, None, "lack blocks.0.layers.0.bias"),
    "one matrix by flag": ("vllm", {"original_lm_head": True}, None, "not expected: lm_heads.1.weight"),
    "a matrix each by flag": ("vllm one matrix", {"original_lm_head": False}, None, "lack lm_heads.1.weight"),
    "no token_map": ("vllm some ids", {}, lambda t: without(t, "token_map"), "lack token_map"),
    "a shorter token_map": ("vllm some ids", {"truncated_vocab_size": 6}, None, "is not the 5 ids of token_map"),
    "an id twice": ("vllm some ids", {}, lambda t: t | {"token_map": torch.tensor([1, 1, 2, 3, 4])}, "an id twice"),
    "an id too large": ("vllm some ids", {}, lambda t: t | {"token_map": torch.tensor([0, 1, 2, 3, 20])}, "outside"),
    "ids that are no numbers": ("vllm some ids", {}, lambda t: t | {"token_map": torch.ones(5)}, "int64"),
    "another target": ("vllm", {"vocab_size": 32000}, None, "vocabulary of 32000, width 16, not for toy"),
    "a whole model": ("v2 pt", {}, lambda t: {f"medusa_head.{n}": x for n, x in t.items()}, "Medusa-2"),
    "no heads at all": ("v2 pt", {}, lambda t: {"a.weight": torch.ones(2)}, "called 0.0.linear.weight; it holds a.weight"),
    "no tensors at all": ("v2 pt", {}, lambda t: {}, "it holds none"),
    "whole numbers": ("v1 pt", {}, lambda t: t | {"0.2.weight": torch.ones(VOCAB, WIDTH).long()}, "0.2.weight .* int64"),
    "eight bits": ("v1 pt", {}, lambda t: changed(t, "0.0.linear.bias", lambda x: x.to(torch.float8_e4m3fn)), "as float8"),
    "no number": ("vllm", {}, lambda t: changed(t, "lm_heads.0.weight", lambda x: x / 0.0), "lm_heads.0.weight .* NaN"),
    "no heads by flag": (
        "v1 pt",
        {"medusa_num_heads": 0},
        None,
        "medusa_num_heads = 0, which is no whole number from 1 to 16 million",
    ),
    "absurdly many": (
        "v1 pt",
        {"medusa_num_heads": 10**9},
        None,
        "medusa_num_heads = 1000000000, which is no whole number from 1",
    ),
    "more ids than there are": ("vllm", {"truncated_vocab_size": VOCAB + 1}, None, "lack token_map"),
    "an empty token_map": ("vllm some ids", {}, lambda t: t | {"token_map": torch.tensor([]).long()}, "names no ids"),
}


@pytest.mark.parametrize("case", BROKEN_MEDUSA)
def test_wrong_medusa_files_are_refused_by_name(lm, tmp_path, case):
    kind, flags, change, message = BROKEN_MEDUSA[case]
    config, tensors, file = MEDUSA[kind]
    write(tmp_path, config | flags, change(tensors) if change else tensors, file)
    with pytest.raises(ValueError, match=message):
        load_drafter("medusa", lm, tmp_path)


def test_more_heads_than_said_are_all_used_and_it_is_said(lm, tmp_path, capsys):
    """The published heads for Vicuna are five, and their configuration says two."""
    config, tensors, file = MEDUSA["v2 pt"]
    net, _ = read_medusa(write(tmp_path, config | {"medusa_num_heads": 1}, tensors, file), lm)
    assert len(net.blocks) == 2 and "says 1 heads; the weights hold 2" in capsys.readouterr().err


# --- EAGLE ---


def layer(prefix, inside, bias=False, size=SIZE):
    shapes = {
        "self_attn.q_proj.weight": (HEADS * size, inside),
        "self_attn.k_proj.weight": (KV * size, inside),
        "self_attn.v_proj.weight": (KV * size, inside),
        "self_attn.o_proj.weight": (WIDTH, HEADS * size),
        "mlp.gate_proj.weight": (MLP, WIDTH),
        "mlp.up_proj.weight": (MLP, WIDTH),
        "mlp.down_proj.weight": (WIDTH, MLP),
        "post_attention_layernorm.weight": (WIDTH,),
    }
    if bias:
        shapes |= {f"self_attn.{x}_proj.bias": (n * SIZE,) for x, n in (("q", HEADS), ("k", KV), ("v", KV))}
    if inside > WIDTH:
        shapes |= {"input_layernorm.weight": (WIDTH,), "hidden_norm.weight": (WIDTH,)}
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def eagle3(prefix, ids=tuple(IDS), size=SIZE):
    shapes = layer(prefix, 2 * WIDTH, size=size) | {"fc.weight": (WIDTH, 3 * WIDTH), "norm.weight": (WIDTH,)}
    tensors = noise(shapes | {"lm_head.weight": (len(ids) or VOCAB, WIDTH)})
    if ids:
        inside = torch.zeros(VOCAB, dtype=torch.bool)
        inside[list(ids)] = True
        tensors |= {"d2t": torch.tensor(ids) - torch.arange(len(ids)), "t2d": inside}
    return tensors


LLAMA = {"hidden_size": WIDTH, "intermediate_size": MLP, "num_attention_heads": HEADS, "num_key_value_heads": KV}
LLAMA |= {"num_hidden_layers": 1, "rms_norm_eps": 1e-5, "vocab_size": VOCAB, "rope_theta": THETA, "hidden_act": "silu"}
LLAMA |= {"max_position_embeddings": 64, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
NUMBERS = {"head_dim": 8, "rope_theta": 50.0, "rms_norm_eps": 0.1, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
FC1 = {"fc.weight": (WIDTH, 2 * WIDTH), "fc.bias": (WIDTH,)}
ORIGINAL = LLAMA | {"draft_vocab_size": len(IDS)}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.3.0",
    "draft_vocab_size": len(IDS),
    "norm_before_residual": False,
    "target_hidden_size": None,
    "transformer_layer_config": LLAMA,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "someone/theirs"}},
}
BIASES = {f"midlayer.self_attn.{x}_proj.bias": (n * SIZE,) for x, n in (("q", HEADS), ("k", KV), ("v", KV), ("o", HEADS))}
BIASES |= {f"midlayer.mlp.{x}_proj.bias": (n,) for x, n in (("gate", MLP), ("up", MLP), ("down", WIDTH))}
EMBED = {"embed_tokens.weight": (VOCAB, WIDTH)}

# name: (config, tensors, file, layers of the target that it reads, numbered by what goes in)
EAGLE = {
    "1": (LLAMA, noise(layer("layers.0", WIDTH) | FC1), "pytorch_model.bin", (7,)),
    "1 own embeddings": (LLAMA, noise(layer("layers.0", WIDTH) | FC1 | EMBED), "pytorch_model.bin", (7,)),
    "1 without bias": (
        LLAMA | {"bias": False},
        noise(layer("layers.0", WIDTH) | {"fc.weight": (WIDTH, 2 * WIDTH)}),
        "model.safetensors",
        (7,),
    ),
    "3 biases": (
        ORIGINAL | {"attention_bias": True, "mlp_bias": True},
        eagle3("midlayer") | noise(BIASES, 6),
        "model.safetensors",
        (2, 3, 4),
    ),
    "1 for qwen2": (
        LLAMA | {"bias": True, "qkv_bias": True},
        noise(layer("layers.0", WIDTH, bias=True) | FC1),
        "model.safetensors",
        (7,),
    ),
    "3": (ORIGINAL, eagle3("midlayer"), "pytorch_model.bin", (2, 3, 4)),
    "3 all ids": (LLAMA | {"draft_vocab_size": VOCAB}, eagle3("midlayer", ()), "model.safetensors", (2, 3, 4)),
    "3 own embeddings": (ORIGINAL, eagle3("midlayer") | noise(EMBED, 5), "model.safetensors", (2, 3, 4)),
    "3 other numbers": (ORIGINAL | NUMBERS, eagle3("midlayer", size=8), "model.safetensors", (2, 3, 4)),
    "3 specforge": (
        ORIGINAL
        | {"architectures": ["LlamaForCausalLMEagle3"], "norm_output": True, "fc_norm": False}
        | {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 5]}},
        eagle3("midlayer"),
        "model.safetensors",
        (2, 4, 6),
    ),
    "3 nested inputs": (
        ORIGINAL | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5, 7]}},
        eagle3("midlayer"),
        "model.safetensors",
        (3, 5, 7),
    ),
    "speculators": (SPECULATORS, eagle3("layers.0"), "model.safetensors", (2, 3, 4)),
    "speculators layers": (
        SPECULATORS | {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
        eagle3("layers.0"),
        "model.safetensors",
        (1, 3, 5),
    ),
    "speculators normed residual": (
        SPECULATORS | {"norm_before_residual": True},
        eagle3("layers.0"),
        "model.safetensors",
        (2, 3, 4),
    ),
    "speculators normed output": (
        SPECULATORS | {"norm_before_residual": True, "norm_output": True},
        eagle3("layers.0"),
        "model.safetensors",
        (2, 3, 4),
    ),
}


def turned(x, config):
    """Rope over x [time, heads, size]."""
    size, places = x.shape[-1], torch.arange(len(x))[:, None].double() / (config.get("rope_scaling") or {}).get("factor", 1)
    angles = places * config["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def eagle_by_hand(lm, config, tensors, layers, text, more):
    """Logits after the text, and after one more token read with the head's own output, from published names alone."""
    t = {name.replace("midlayer.", "layers.0."): x.double() for name, x in tensors.items()}
    eagle, n = 3 if "layers.0.hidden_norm.weight" in t else 1, len(text)
    flat = config.get("transformer_layer_config", config)
    size = flat.get("head_dim", SIZE)

    def rms(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + flat["rms_norm_eps"]).sqrt() * weight

    *named, _ = lm.model.states(torch.tensor([text]), lm.model.new_cache(1, n), layers=layers)
    hidden = torch.cat([x[0] for x in named], -1)
    embed = t.get("embed_tokens.weight", lm.model.embed_tokens.weight)
    features = (hidden @ t["fc.weight"].T if eagle == 3 else hidden)[: n - 1]
    tokens, logits = text[1:], []
    for _ in range(2):
        e = embed[torch.tensor(tokens)]
        if eagle == 3:
            normed = rms(features, t["layers.0.hidden_norm.weight"])
            x = torch.cat((rms(e, t["layers.0.input_layernorm.weight"]), normed), -1)
            stream = normed if config.get("norm_before_residual") else features
        else:
            x = stream = torch.cat((e, features), -1) @ t["fc.weight"].T + t.get("fc.bias", torch.zeros(WIDTH))
        q, k, v = (x @ t[f"layers.0.self_attn.{p}_proj.weight"].T for p in "qkv")
        q, k, v = (y + t.get(f"layers.0.self_attn.{p}_proj.bias", 0.0) for p, y in zip("qkv", (q, k, v), strict=True))
        q, k, v = (y.view(len(tokens), -1, size) for y in (q, k, v))
        q, k = turned(q, flat), turned(k, flat).repeat_interleave(HEADS // KV, 1)
        v = v.repeat_interleave(HEADS // KV, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / size**0.5
        p = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        x = stream + torch.einsum("hij,jhd->ihd", p, v).flatten(1) @ t["layers.0.self_attn.o_proj.weight"].T
        x = x + t.get("layers.0.self_attn.o_proj.bias", 0.0)
        y = rms(x, t["layers.0.post_attention_layernorm.weight"])
        gate, up = (
            y @ t[f"layers.0.mlp.{p}_proj.weight"].T + t.get(f"layers.0.mlp.{p}_proj.bias", 0.0) for p in ("gate", "up")
        )
        x = (
            x
            + (gate * gate.sigmoid() * up) @ t["layers.0.mlp.down_proj.weight"].T
            + t.get("layers.0.mlp.down_proj.bias", 0.0)
        )
        head = t["lm_head.weight"] if eagle == 3 else lm.model.lm_head.weight
        final = rms(x, t["norm.weight"]) if eagle == 3 else x
        logits.append(head @ final[-1])
        features = torch.cat((features, (final if config.get("norm_output") and "speculators_config" in config else x)[-1:]))
        tokens = [*tokens, more]
    return logits


def head_logits(lm, net, text, more):
    hidden = torch.stack(lm.model.states(torch.tensor([text]), lm.model.new_cache(1, 9), layers=net.layers_read)[:-1], 2)
    cache = net.new_cache(1, 9)
    first = net.step(net.fuse(hidden[:, :-1]), torch.tensor([text[1:]]), cache)[:, -1:]
    second = net.step(first, torch.tensor([[more]]), cache)
    return net.logits(first)[0, 0], net.logits(second)[0, 0]


@pytest.mark.parametrize("layout", EAGLE)
def test_eagle_layouts_give_the_logits_computed_by_hand(lm, tmp_path, layout):
    config, tensors, file, layers = EAGLE[layout]
    net, own = read_eagle(write(tmp_path, config, tensors, file), lm)
    assert own == {} and net.layers_read == layers
    assert net.vocabulary.tolist() == (IDS if "d2t" in tensors else list(range(VOCAB)))
    wanted = eagle_by_hand(lm, config, tensors, layers, [3, 1, 4, 1, 5], 9)
    for got, by_hand in zip(head_logits(lm, net, [3, 1, 4, 1, 5], 9), wanted, strict=True):
        torch.testing.assert_close(got, by_hand, rtol=1e-5, atol=1e-6)  # angles are float32
    prompt = torch.tensor([3, 1, 4])
    for tree in ("chain", "dynamic"):
        generation = ms.generate(lm, prompt, load_drafter("eagle", lm, tmp_path, tree=tree), max_new_tokens=20)
        assert generation.tokens.tolist() == ms.generate(lm, prompt, max_new_tokens=20).tokens.tolist()
    with pytest.raises(ValueError, match="without the rates"):
        load_drafter("eagle", lm, tmp_path, tree="static")


@pytest.mark.parametrize("layout", ["vllm", "original", "speculators"])
@pytest.mark.parametrize("kind", EAGLE)
def test_eagle_written_and_read_again_gives_the_same_logits(lm, tmp_path, kind, layout):
    config, tensors, file, layers = EAGLE[kind]
    drafter = load_drafter("eagle", lm, write(tmp_path / "in", config, tensors, file))
    refusal = None
    if kind.startswith("1") and layout != "original":
        refusal = "original layout only"
    if kind == "speculators normed output" and layout != "speculators":
        refusal = "speculators layout only"
    if refusal:
        with pytest.raises(ValueError, match=refusal):
            export_drafter(drafter, lm, tmp_path / "out", layout)
        return
    export_drafter(drafter, lm, tmp_path / "out", layout)
    again, _ = read_eagle(tmp_path / "out", lm)
    export_drafter(load_drafter("eagle", lm, tmp_path / "out"), lm, tmp_path / "twice", layout)
    assert same_files(tmp_path / "out", tmp_path / "twice")
    assert again.layers_read == layers and torch.equal(again.vocabulary, drafter.net.vocabulary)
    for got, wanted in zip(head_logits(lm, again, [3, 1, 4], 9), head_logits(lm, drafter.net, [3, 1, 4], 9), strict=True):
        assert torch.equal(got, wanted)

    written = json.loads((tmp_path / "out" / "config.json").read_text())
    stored, there = (
        load_file(tmp_path / "out" / "model.safetensors"),
        "layers.0." if layout == "speculators" else "midlayer.",
    )
    there = "layers.0." if kind.startswith("1") else there
    named = {name.replace("layers.0.", there).replace("midlayer.", there): x for name, x in tensors.items()}
    assert set(stored) == set(named) and all(torch.equal(x.to(stored[name]), stored[name]) for name, x in named.items())
    inner = written["transformer_layer_config"] if layout == "speculators" else written
    given = {"rope_theta": THETA, "head_dim": SIZE, "rms_norm_eps": 1e-5, "rope_scaling": None}
    given |= NUMBERS if kind == "3 other numbers" else {}
    assert {name: inner[name] for name in given} == given
    assert inner["dtype"] == inner["torch_dtype"] == "float64"
    if kind.startswith("1"):
        assert written["bias"] is (kind != "1 without bias") and written["qkv_bias"] is (kind == "1 for qwen2")
        return
    assert written["norm_before_residual"] is bool(config.get("norm_before_residual"))
    assert written["fc_norm"] is written["norm_before_fc"] is False
    assert written["draft_vocab_size"] == len(drafter.net.vocabulary)
    if layout == "speculators":
        assert written["norm_output"] is (kind == "speculators normed output")
        assert written["eagle_aux_hidden_state_layer_ids"] == list(layers)
    else:
        assert "norm_output" not in written  # SpecForge and vLLM agree on what its absence means, and on nothing else
        assert written.get("eagle_aux_hidden_state_layer_ids", [2, 3, 4]) == list(layers)


SPEC_LAYER = SPECULATORS["transformer_layer_config"]
D2T = EAGLE["3"][1]["d2t"]
BROKEN_EAGLE = {
    "a tensor is missing": (
        "3",
        {},
        lambda t: without(t, "midlayer.hidden_norm.weight"),
        "lack midlayer.hidden_norm.weight",
    ),
    "a layer's matrix is missing": (
        "1",
        {},
        lambda t: without(t, "layers.0.mlp.up_proj.weight"),
        "lack layers.0.mlp.up_proj",
    ),
    "no fc": ("3", {}, lambda t: without(t, "fc.weight"), "lack fc.weight"),
    "something else is there": ("3", {}, lambda t: t | {"fc_norm.0.weight": torch.ones(WIDTH)}, "lacks: fc_norm.0.weight"),
    "an input norm in EAGLE-1": (
        "1",
        {},
        lambda t: t | {"layers.0.input_layernorm.weight": torch.ones(16)},
        "lacks: layers.0",
    ),
    "two features instead of three": (
        "3",
        {},
        lambda t: t | {"fc.weight": torch.ones(16, 32)},
        r"\[16, 32\], not \[16, 48\]",
    ),
    "a query row too many, a key row too few": (
        "3",
        {},
        lambda t: t | {f"midlayer.self_attn.{x}_proj.weight": torch.ones(n, 32) for x, n in (("q", 17), ("k", 7))},
        r"q_proj.weight .* \[17, 32\], not \[16, 32\]",
    ),
    "gate turned": (
        "1",
        {},
        lambda t: changed(t, "layers.0.mlp.gate_proj.weight", lambda x: x.T),
        r"gate_.* \[16, 32\], not",
    ),
    "whole numbers": ("3", {}, lambda t: changed(t, "norm.weight", lambda x: x.long()), "norm.weight .* stored as int64"),
    "no number": ("speculators", {}, lambda t: changed(t, "fc.weight", lambda x: x.log()), "fc.weight .* holds NaN"),
    "no number in the embeddings": (
        "3 own embeddings",
        {},
        lambda t: changed(t, "embed_tokens.weight", lambda x: x / 0.0),
        "embed_tokens.weight .* holds NaN",
    ),
    "keys of another width": ("3", {}, lambda t: t | {"midlayer.self_attn.k_proj.weight": torch.ones(16, 32)}, "has shape"),
    "a bias by flag": ("1 without bias", {"bias": True}, None, "lack fc.bias"),
    "a bias by silence": ("1 without bias", {"bias": None}, None, "lack fc.bias"),
    "no bias by flag": ("1", {"bias": False}, None, "lacks: fc.bias"),
    "attention's biases by flag": ("1", {"qkv_bias": True}, None, "lack layers.0.self_attn.q_proj.bias"),
    "another architecture": ("3", {"architectures": ["Gemma2ForCausalLM"]}, None, "Gemma2ForCausalLM.*only Llama's"),
    "angles of another kind": ("3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, None, "'dynamic' is not"),
    "angles of no kind": ("3", {"rope_scaling": {"rope_type": "linear", "factor": 1e-45}}, None, "come no angles"),
    "angles turned back": (
        "3",
        {"rope_scaling": {"rope_type": "yarn", "factor": -2}},
        None,
        "factor = -2, which is no number",
    ),
    "a tree of nothing": ("3", {"minispec": {"tree": "static", "rates": [3]}}, None, "shapes no tree .TypeError"),
    "a tree at no cost": ("3", {"minispec": {"tree": "static", "rates": [[0.5]]}}, None, "shapes no tree .KeyError"),
    "a sliding window": ("3", {"use_sliding_window": True}, None, "use_sliding_window = true, but only false"),
    "a sliding layer": ("3", {"layer_types": ["sliding_attention"]}, None, "layer_types .* asks for sliding-window"),
    "heads that do not fit": ("3", {"num_attention_heads": 3}, None, "no configuration of a layer .*attention heads"),
    "two layers": ("3", {"num_hidden_layers": 2}, None, "num_hidden_layers = 2, but only 1 is computed"),
    "norms before fc": ("3", {"fc_norm": True}, None, "fc_norm = true, but only false"),
    "no norm before lm_head": ("3 specforge", {"norm_output": False}, None, "norm_output = false, but only true"),
    "one norm before fc": ("speculators", {"norm_before_fc": True}, None, "norm_before_fc = true"),
    "no fused states": ("3", {"eagle_config": {"use_aux_hidden_state": False}}, None, "use_aux_hidden_state = false"),
    "silence on the residual": ("speculators", {"norm_before_residual": None}, None, "lacks norm_before_residual"),
    "silence on the ids": ("3", {"draft_vocab_size": None}, None, "lacks draft_vocab_size"),
    "another kind": ("speculators", {"speculators_model_type": "eagle"}, None, 'speculators_model_type = "eagle"'),
    "another family": (
        "speculators",
        {"transformer_layer_config": SPEC_LAYER | {"model_type": "qwen3"}},
        None,
        'model_type = "qwen3", but only "llama"',
    ),
    "a wider target": ("3", {"target_hidden_size": 32}, None, "target_hidden_size = 32, but only 16"),
    "another vocabulary": ("3", {"vocab_size": VOCAB + 8}, None, "vocabulary of 28, width 16, not for toy"),
    "a size is missing": ("3", {"intermediate_size": None}, None, "lacks intermediate_size"),
    "outputs counted as inputs": (
        "speculators",
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        None,
        r"write \[2, 3, 4\]",
    ),
    "two lists": (
        "3 specforge",
        {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]},
        None,
        "other layers in eagle_config",
    ),
    "a layer too many": ("speculators", {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}, None, "the target has 0 to 7"),
    "a layer twice": ("speculators", {"eagle_aux_hidden_state_layer_ids": [2, 4, 4]}, None, r"\[2, 4, 4\]"),
    "no d2t": ("3", {}, lambda t: without(t, "d2t"), r"lack d2t, but draft_vocab_size \(5\)"),
    "a longer d2t": ("3", {}, lambda t: t | {"d2t": torch.zeros(6, dtype=torch.int64)}, r"d2t .* \[6\], not \[5\]"),
    "ids instead of offsets": ("3", {}, lambda t: t | {"d2t": torch.tensor(IDS)}, "d2t .* outside the target's vocabulary"),
    "an id twice": ("3", {}, lambda t: t | {"d2t": torch.tensor([1, 0, 3, 8, 15])}, "d2t .* an id twice"),
    "d2t and t2d differ": ("3", {}, lambda t: t | {"d2t": D2T - torch.tensor([1, 0, 0, 0, 0])}, "do not name the same ids"),
}


@pytest.mark.parametrize("case", BROKEN_EAGLE)
def test_wrong_eagle_files_are_refused_by_name(lm, tmp_path, case):
    kind, flags, change, message = BROKEN_EAGLE[case]
    config, tensors, file, _ = EAGLE[kind]
    config = {name: value for name, value in (config | flags).items() if value is not None}
    write(tmp_path, config, change(tensors) if change else tensors, file)
    with pytest.raises(ValueError, match=message):
        load_drafter("eagle", lm, tmp_path)


def test_a_copy_of_the_targets_embeddings_takes_no_memory_and_is_not_written(lm, tmp_path):
    config, tensors, file, _ = EAGLE["1"]
    tensors = tensors | {"embed_tokens.weight": lm.model.embed_tokens.weight.detach()}
    drafter = load_drafter("eagle", lm, write(tmp_path / "in", config, tensors, file))
    assert drafter.net.embed_tokens.weight is lm.model.embed_tokens.weight
    export_drafter(drafter, lm, tmp_path / "out", "original")
    assert "embed_tokens.weight" not in load_file(tmp_path / "out" / "model.safetensors")


def test_layers_in_another_order_than_vllm_reads_them_are_not_written(lm, tmp_path):
    config, tensors, file, _ = EAGLE["speculators"]
    drafter = load_drafter(
        "eagle", lm, write(tmp_path / "in", config | {"eagle_aux_hidden_state_layer_ids": [5, 3, 1]}, tensors, file)
    )
    with pytest.raises(ValueError, match=r"ascending order, and this head's are \[5, 3, 1\]"):
        export_drafter(drafter, lm, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "flag", "value"),
    [
        ("3", "hidden_size", "16"),
        ("3", "draft_vocab_size", 5.0),
        ("3", "eagle_config", [1]),
        ("1", "bias", "false"),
        ("1", "rms_norm_eps", "small"),
        ("1", "rms_norm_eps", 0),
        ("3", "rope_theta", "10000"),
        ("3", "intermediate_size", -1),
        ("3", "architectures", "LlamaForCausalLM"),
        ("3", "minispec", {"num_tokens": 0}),
        ("speculators", "transformer_layer_config", LLAMA | {"vocab_size": None, "intermediate_size": "x"}),
        ("speculators", "eagle_aux_hidden_state_layer_ids", [2, 3, "4"]),
        ("speculators", "eagle_aux_hidden_state_layer_ids", 2),
    ],
)
def test_values_of_another_type_are_refused_by_name(lm, tmp_path, kind, flag, value):
    config, tensors, file, _ = EAGLE[kind]
    with pytest.raises(
        ValueError, match=f"says ({flag}|intermediate_size|num_tokens) = .* is no |no configuration .*{flag}"
    ):
        load_drafter("eagle", lm, write(tmp_path, config | {flag: value}, tensors, file))


def test_a_shallow_target_needs_its_layers_named(tmp_path):
    config, tensors, file, _ = EAGLE["3"]
    with pytest.raises(ValueError, match="names no layers of the target, which has 4"):
        load_drafter("eagle", ms.toy(vocab_size=VOCAB, num_hidden_layers=4), write(tmp_path, config, tensors, file))


# --- Draft models ---

MODEL = layer("model.layers.0", WIDTH) | {"model.layers.0.input_layernorm.weight": (WIDTH,), "model.norm.weight": (WIDTH,)}
OUTER = {"model.embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH)}
OWN = {"vocabulary": torch.tensor(IDS).int()}

# name: (config, tensors)
DRAFT = {
    "published": (LLAMA | {"tie_word_embeddings": False}, noise(MODEL | OUTER)),
    "published, tied": (LLAMA | {"tie_word_embeddings": True}, noise(MODEL | {"model.embed_tokens.weight": (VOCAB, WIDTH)})),
    "own": (LLAMA | {"minispec": {"target": "toy", "shares_embeddings": False}}, noise(MODEL | OUTER) | OWN),
    "own, shares": (LLAMA | {"minispec": {"target": "toy", "shares_embeddings": True}}, noise(MODEL) | OWN),
}


@pytest.mark.parametrize("kind", DRAFT)
def test_draft_models_give_the_logits_of_transformers_and_draft_their_ids_alone(lm, tmp_path, kind):
    from transformers import LlamaConfig, LlamaForCausalLM

    config, tensors = DRAFT[kind]
    drafter = load_drafter("draft", lm, write(tmp_path, config, tensors), num_tokens=2)
    peer = LlamaForCausalLM(LlamaConfig(**{n: x for n, x in config.items() if n != "minispec"})).double()
    theirs = {f"model.{name}": x for name, x in lm.model.state_dict().items() if name == "embed_tokens.weight"}
    theirs |= {"lm_head.weight": lm.model.lm_head.weight}
    whole = without(tensors, *OWN) if "vocabulary" in tensors else tensors | {}
    missing, left = peer.load_state_dict(whole | (theirs if kind == "own, shares" else {}), strict=False)
    assert not left and set(missing) <= {"lm_head.weight"}
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    model = drafter.small.model
    torch.testing.assert_close(model(ids, model.new_cache(1, 9)), peer(ids).logits, rtol=1e-5, atol=1e-6)
    assert kind.startswith("published") or drafter.vocabulary.tolist() == IDS
    rounds = ms.generate(lm, torch.tensor([3, 1, 4]), drafter, max_new_tokens=20).trace.rounds
    assert kind.startswith("published") or {i for r in rounds for i in r.drafted} <= set(IDS)


@pytest.mark.parametrize("kind", DRAFT)
def test_draft_models_written_and_read_again_give_the_same_logits(lm, tmp_path, kind):
    config, tensors = DRAFT[kind]
    drafter = load_drafter("draft", lm, write(tmp_path / "in", config, tensors))
    export_drafter(drafter, lm, tmp_path / "out")
    again, ids = load_drafter("draft", lm, tmp_path / "out"), torch.tensor([[3, 1, 4, 1, 5]])
    for model in (again.small.model, drafter.small.model):
        assert torch.equal(model(ids, model.new_cache(1, 9)), drafter.small.model(ids, model.new_cache(1, 9)))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(x.to(stored[name]), stored[name]) for name, x in tensors.items() if name != "vocabulary")
    assert ("lm_head.weight" in stored) == (kind != "published, tied")
    export_drafter(again, lm, tmp_path / "twice")
    assert same_files(tmp_path / "out", tmp_path / "twice")


BROKEN_DRAFT = {
    "a tensor is missing": ("own", {}, lambda t: without(t, "model.norm.weight"), "lack model.norm.weight"),
    "no ids": ("own", {}, lambda t: without(t, "vocabulary"), "lack vocabulary"),
    "an id too large": ("own", {}, lambda t: t | {"vocabulary": torch.tensor([VOCAB])}, "outside the target's vocabulary"),
    "matrices that are shared": (
        "own",
        {"minispec": {"shares_embeddings": True}},
        None,
        "architecture lacks: lm_head.weight",
    ),
    "matrices that are not": ("own, shares", {"minispec": {"shares_embeddings": False}}, None, "lack model.embed_tokens"),
    "silence on that": ("own", {"minispec": {"target": "toy"}}, None, "lacks shares_embeddings"),
    "another vocabulary": ("own", {"vocab_size": VOCAB + 1}, None, "trained for toy, not for toy"),
    "another width": ("own, shares", {"hidden_size": 32}, None, "trained for toy, not for toy"),
    "heads that do not fit": ("own", {"num_attention_heads": 3}, None, "no model .* not a multiple of"),
    "whole numbers": ("published", {}, lambda t: changed(t, "lm_head.weight", lambda x: x.long()), "stored as int64"),
    "no number": ("published", {}, lambda t: changed(t, "model.norm.weight", lambda x: x / 0.0), "norm.weight .* holds NaN"),
    "tied by flag alone": ("published", {"tie_word_embeddings": True}, None, "ties lm_head.weight to the embeddings, but"),
    "two layers": ("published", {"num_hidden_layers": 2}, None, "lack model.layers.1"),
    "angles of no kind": ("published", {"rope_theta": "x"}, None, 'rope_theta = "x"'),
    "another architecture": ("published", {"architectures": ["GPT2LMHeadModel"]}, None, "GPT2LMHeadModel is not supported"),
    "another type": ("published", {"model_type": [1]}, None, "no model that transformers knows"),
}


@pytest.mark.parametrize("case", BROKEN_DRAFT)
def test_wrong_draft_models_are_refused_by_name(lm, tmp_path, case):
    kind, flags, change, message = BROKEN_DRAFT[case]
    config, tensors = DRAFT[kind]
    with pytest.raises(ValueError, match=message):
        load_drafter("draft", lm, write(tmp_path, config | flags, change(tensors) if change else tensors))


# --- Files ---


class Code:
    def __reduce__(self):
        return os.system, ("exit 1",)


def test_damaged_files_and_pickles_of_more_than_tensors_are_refused(lm, tmp_path):
    config, tensors, file = MEDUSA["v2 pt"]
    folder = write(tmp_path / "pt", config, tensors, file)
    whole = (folder / file).read_bytes()
    for size in (0, 50, len(whole) // 2, len(whole) - 1):
        (folder / file).write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"medusa_lm_head.pt is damaged, or no file of torch.save \(.*fetch it again"):
            load_drafter("medusa", lm, folder)
    for content, message in (
        (tensors | {"code": Code()}, r"not a pickle of plain tensors \(GLOBAL (posix|nt).system\)"),
        ({"0.0.linear.weight": [1.0]}, "a dict that is not a table of tensors alone"),
        (torch.ones(3), "a Tensor that is not a table of tensors alone"),
    ):
        torch.save(content, folder / file)
        with pytest.raises(ValueError, match=message):
            load_drafter("medusa", lm, folder)
    (folder / file).write_bytes(pickle.dumps(Code()))
    with pytest.raises(ValueError, match="not a pickle of plain tensors"):
        load_drafter("medusa", lm, folder)
    (folder / file).unlink()
    with pytest.raises(ValueError, match="neither a .safetensors file nor medusa_lm_head.pt"):
        load_drafter("medusa", lm, folder)
    for method, kind in (("medusa", MEDUSA["vllm"]), ("eagle", EAGLE["3 all ids"][:3])):
        folder = write(tmp_path / method, *kind)
        whole = (folder / "model.safetensors").read_bytes()
        for size in (0, 5, len(whole) // 2, len(whole) - 1):
            (folder / "model.safetensors").write_bytes(whole[:size])
            with pytest.raises(ValueError, match="model.safetensors is damaged"):
                load_drafter(method, lm, folder)
        for text in ("", "{", "[1]"):
            (folder / "config.json").write_text(text)
            with pytest.raises(ValueError, match="config.json"):
                load_drafter(method, lm, folder)


def pointer(folder, file):
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def index(folder, file, text='{"weight_map": {"a": "gone"}}'):
    (folder / ("pytorch_model.bin" if file.endswith(".bin") else "model.safetensors")).with_suffix(
        (folder / file).suffix + ".index.json"
    ).write_text(text)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("3 all ids", pointer, "model.safetensors is a pointer of Git LFS"),
        ("3", pointer, "pytorch_model.bin is a pointer of Git LFS"),
        ("3 all ids", index, "lacks gone, which model.safetensors.index.json names"),
        ("3", index, "lacks gone, which pytorch_model.bin.index.json names"),
        ("3 all ids", lambda folder, file: index(folder, file, "[]"), "index.json cannot be read"),
        (
            "3 all ids",
            lambda f, file: save_file({"fc.weight": torch.ones(2)}, f / "b.safetensors"),
            "two files .* fc.weight",
        ),
        ("3 all ids", lambda f, file: ((f / file).unlink(), (f / file).mkdir()), "neither a .safetensors file nor"),
        ("3", lambda f, file: (f / file).write_text("<html>"), "damaged, or no file of torch.save"),
        ("3", lambda f, file: torch.save({"a": torch.ones(2).numpy()}, f / file), r"\(GLOBAL numpy\S+\)"),
        ("3", lambda f, file: torch.jit.script(torch.nn.Linear(1, 1)).save(str(f / file)), r"\(TorchScript\)"),
        ("3", lambda f, file: torch.save({0: torch.ones(2)}, f / file), "not a table of tensors alone"),
        ("3", lambda f, file: torch.save({"a": torch.ones(2).to_sparse()}, f / file), "not a table of tensors alone"),
        ("3", lambda f, file: torch.save({"a": torch.ones(2, device="meta")}, f / file), "not a table of tensors alone"),
        ("3", lambda f, file: (f / "config.json").write_text("[" * 99999), "config.json cannot be read"),
    ],
)
def test_folders_with_files_of_another_kind_are_refused_by_name(lm, tmp_path, kind, change, message):
    change(write(tmp_path, *EAGLE[kind][:3]), EAGLE[kind][2])
    with pytest.raises(ValueError, match=message):
        load_drafter("eagle", lm, tmp_path)


def test_weights_in_several_files_are_those_of_their_index(lm, tmp_path):
    config, tensors, _, _ = EAGLE["3 all ids"]
    write(tmp_path, config, without(tensors, "fc.weight"), "model-1.safetensors")
    save_file({"fc.weight": tensors["fc.weight"]}, tmp_path / "model-2.safetensors")
    save_file({"fc.weight": tensors["fc.weight"] * 2}, tmp_path / "older.safetensors")  # not named, so not read
    files = {name: f"model-{2 if name == 'fc.weight' else 1}.safetensors" for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    index(tmp_path, "model.bin")  # of a format that is not read here, and not fetched
    assert torch.equal(read_eagle(tmp_path, lm)[0].fc.weight, tensors["fc.weight"].double())


def test_blocks_that_share_their_memory_are_written_whole(tmp_path):
    """Medusa's own code repeats one block, so its files name numbers twice; absent biases are zeros."""
    lm = ms.toy(vocab_size=VOCAB, num_hidden_layers=LAYERS, dtype="float32")
    one = noise({"weight": (WIDTH, WIDTH), "bias": (WIDTH,)})
    config, tensors, file = MEDUSA["v2 pt"]
    for kind in ((config, {name: one[name.split(".")[-1]] for name in tensors}, file), MEDUSA["vllm without biases"]):
        drafter = load_drafter("medusa", lm, write(tmp_path / kind[2], *kind))
        for layout in ("vllm", "original"):
            export_drafter(drafter, lm, tmp_path / kind[2] / layout, layout)
            state = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
            assert torch.equal(read_medusa(tmp_path / kind[2] / layout, lm)[0](state), drafter.net(state))


def test_nothing_half_written_stays(lm, tmp_path):
    (tmp_path / ".whole.part").mkdir()
    (tmp_path / ".whole.part" / "older").touch()  # of a run that was killed
    with new_folder(tmp_path / "whole") as part:
        assert not (tmp_path / "whole").exists()
        (part / "config.json").write_text("{}")
    assert [file.name for file in (tmp_path / "whole").iterdir()] == ["config.json"]
    with pytest.raises(ValueError, match="is there already; name a new folder"), new_folder(tmp_path / "whole"):
        pass
    assert [file.name for file in (tmp_path / "whole").iterdir()] == ["config.json"]
    shutil.rmtree(tmp_path / "whole")
    with pytest.raises(RuntimeError), new_folder(tmp_path / "out") as part:
        (part / "config.json").write_text("{}")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on the size of a file")
@pytest.mark.parametrize("layout", ["vllm", "original"])
def test_a_disk_without_room_leaves_nothing(lm, tmp_path, layout):
    import resource
    import signal

    drafter = load_drafter("medusa", lm, write(tmp_path / "in", *MEDUSA["v1 pt"]))
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ValueError, match="could not write .* is there room for it"):
            export_drafter(drafter, lm, tmp_path / "out", layout)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_the_shipped_heads_written_and_read_again(target, tmp_path, capsys):
    state = torch.randn(3, 576, generator=torch.Generator().manual_seed(0))
    for method, layout in (("medusa", "vllm"), ("medusa", "original"), ("eagle", "vllm"), ("eagle", "speculators")):
        drafter = load_drafter(method, target)
        export_drafter(drafter, target, tmp_path / f"{method}-{layout}", layout)
        again = load_drafter(method, target, tmp_path / f"{method}-{layout}")
        if method == "eagle":
            assert again.net.layers_read == (2, 15, 27)
            got, wanted = head_logits(target, again.net, [3, 1, 4], 9), head_logits(target, drafter.net, [3, 1, 4], 9)
        else:
            got, wanted = again.net(state)[..., drafter.net.vocabulary], drafter.net(state)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for arguments, message in (
        (
            ["medusa", "out", "--layout", "speculators"],
            "no layout 'speculators' for the method medusa; use vllm or original",
        ),
        (["eagle", str(tmp_path / "eagle-vllm")], "is there already"),
    ):
        with pytest.raises(SystemExit) as status:
            main(["export", *arguments])
        captured = capsys.readouterr()
        assert status.value.code == 2 and message in captured.err and captured.err.count("\n") == 1 and not captured.out
