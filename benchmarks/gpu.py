"""The steps of `gpu.sh` that no command of minispec is for. Each prints Markdown, and writes what it measured as JSON.

python benchmarks/gpu.py parity|curve|train|... OUT --model FOLDER --device cuda
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import minispec as ms
from minispec import audit
from minispec.bench import CONTEXT, cost_curve
from minispec.cli import METHODS, make_drafter
from minispec.compile import compiled, compiled_drafter
from minispec.hub import DEFAULT

DTYPES = ("float32", "bfloat16", "float16")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
FAR = 1e-2  # float32 logits farther apart than this do not come from rounding
ROOT = Path(__file__).parent.parent


def methods(lm: ms.LanguageModel) -> list[str]:
    return [m for m in METHODS if lm.name == DEFAULT or m in ("autoregressive", "ngram")]


@torch.inference_mode()
def parity(args: argparse.Namespace) -> dict[str, Any]:
    """Our logits against transformers', and texts of compiled passes against eager ones. Fails if float32 is off."""
    rows, prompts, failed = [], audit.some_prompts(ms.load(args.model, args.device, "float32"), 4), False
    print(f"| dtype | logits farthest from transformers' | likeliest tokens equal |\n|{'---|' * 3}")
    for dtype in DTYPES:
        lm = ms.load(args.model, args.device, dtype)
        peer: Any = transformers.AutoModelForCausalLM.from_pretrained(str(lm.folder), dtype=lm.model.dtype)
        peer = peer.eval().to(lm.model.device)
        farthest, equal, count = 0.0, 0, 0
        for prompt in prompts:
            ids = prompt[None].to(lm.model.device)
            mine, theirs = lm.model(ids, lm.model.new_cache(1, len(prompt))).float(), peer(ids).logits.float()
            farthest = max(farthest, float((mine - theirs).abs().max()))
            equal += int((mine.argmax(-1) == theirs.argmax(-1)).sum())
            count += len(prompt)
        rows.append({"dtype": dtype, "farthest": farthest, "equal": equal, "tokens": count})
        failed |= dtype == "float32" and not farthest < FAR
        print(f"| {dtype} | {farthest:.2g} | {equal} of {count} |", flush=True)
    lm = ms.load(args.model, args.device, "float32")
    fast, texts = compiled(lm), []
    print(f"\n| compiled, float32 | against eager passes |\n|{'---|' * 2}")
    for method in methods(lm):
        drafter = make_drafter(method, lm)
        wanted = [ms.generate(lm, prompt, drafter, max_new_tokens=args.tokens).tokens for prompt in prompts]
        quick = compiled_drafter(drafter)
        got = [ms.generate(fast, prompt, quick, max_new_tokens=args.tokens).tokens for prompt in prompts]
        words, gap = audit.compare(lm, audit.TIE[torch.float32], prompts, wanted, got)
        failed |= gap >= audit.TIE[torch.float32]
        texts.append({"method": method, "found": words, "widest_gap": gap})
        print(f"| {method} | {words} |", flush=True)
    return {"logits": rows, "compiled": texts, "failed": failed}


def curve(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a pass over 1 to 256 tokens, eager and compiled: medians, the sizes in turn."""
    rows = []
    print(f"| a pass, ms, after {CONTEXT} tokens | {' | '.join(map(str, SIZES))} |\n|{'---|' * (1 + len(SIZES))}")
    for dtype in DTYPES:
        lm = ms.load(args.model, args.device, dtype)
        for kind, build in (("eager", lambda lm: lm), ("compiled", compiled)):
            try:
                fast = build(lm)
            except ValueError as error:  # a CPU may not pack every dtype
                print(f"| {dtype}, {kind} | {error} |", flush=True)
                continue
            medians = cost_curve(fast, SIZES, args.repeats)
            rows.append({"dtype": dtype, "kind": kind, "seconds": medians})
            print(f"| {dtype}, {kind} | {' | '.join(f'{1e3 * s:.2f}' for s in medians.values())} |", flush=True)
    return {"context": CONTEXT, "repeats": args.repeats, "curves": rows}


def identity(args: argparse.Namespace) -> dict[str, Any]:
    """The part of the audit that the device has a say in; the whole one is for the default target."""
    lm = ms.load(args.model, args.device, "float32")
    checks = list(audit.identity(lm, {"ngram": ms.NGram}, 4, args.tokens, (1, 4), lm))
    for check in checks:
        print(f"{'ok' if check.passed else 'FAIL'}  {check.name}: {check.measured}")
    return {"failed": not all(check.passed for check in checks)}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train an EAGLE head for so many seconds, on part of the shipped text, and say how fast it learns."""
    from minispec.train.ahead import Examples, kept_layers
    from minispec.train.data import HELD_OUT, Corpus
    from minispec.train.draft import frequent_ids
    from minispec.train.eagle import EagleTrainer, new_net
    from minispec.train.fit import Batches
    from minispec.train.teacher import States

    lm = ms.load(args.model, args.device, "float32")
    corpus = Corpus.load(ROOT / "training" / "text.npz")
    texts = corpus.texts[: args.texts]
    kept = kept_layers(lm)
    ids = frequent_ids(texts, 8192, lm.model.config.vocab_size).to(lm.model.device)
    net = new_net(lm, kept[:-1], ids).requires_grad_(True)
    net.embed_tokens.requires_grad_(False)
    net.lm_head.requires_grad_(False)
    trainer = EagleTrainer(net, lm, 3, kept)
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95))
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        states = States(lm, texts, kept, Path(folder))
        reading = time.monotonic() - start
        held_out = [i for i in range(0, len(texts), HELD_OUT) if texts[i].temperature == 0]
        learnt = Examples(texts, states, [i for i in range(len(texts)) if i % HELD_OUT])
        lengths = [len(texts[i].prompt) + len(texts[i].answer) for i in learnt.numbers]
        losses, tokens, start = [], 0, time.monotonic()
        for group in Batches(lengths, 8, 1 << 20, 0):
            loss = trainer([learnt[i] for i in group])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))  # waits for the device
            tokens += sum(lengths[i] for i in group)
            if time.monotonic() - start > args.seconds:
                break
        taken, rates = time.monotonic() - start, trainer.acceptance(Examples(texts, states, held_out))
    few = max(1, len(losses) // 10)
    first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
    print(f"{len(losses)} steps of 8 texts in {taken:.0f} s after {reading:.0f} s of reading {len(texts)} texts: ", end="")
    print(
        f"{tokens / taken:.0f} tokens a second. Loss {first:.2f} at first, {last:.2f} at last; of the held-out texts' ",
        end="",
    )
    print(f"tokens accepted by position {', '.join(f'{rate:.2f}' for rate in rates)}.")
    measured = {"steps": len(losses), "seconds": taken, "reading_s": reading, "tokens": tokens, "losses": losses}
    return measured | {"held_out_acceptance": rates, "failed": not math.isfinite(last)}


def tiny(args: argparse.Namespace) -> None:
    """A random model of seven narrow layers with the tokenizer of the one in `--model`, to try all this without a GPU."""
    torch.manual_seed(0)
    source = ms.fetch(args.model)
    config = transformers.AutoConfig.from_pretrained(source)
    changes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 7, "num_attention_heads": 2}
    for name, value in (changes | {"num_key_value_heads": 1, "head_dim": 16}).items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, 0, weight.shape[1] ** -0.5)
    model.save_pretrained(args.out)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(args.out)


def page(args: argparse.Namespace) -> None:
    """`gpu.md` from what the steps left in the folder; exit status 1 unless all passed."""
    out, printed = Path(args.out), Path(args.printed)
    steps = [json.loads(line) for line in (printed / "steps.jsonl").read_text().splitlines()]
    card = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else args.device
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, minispec {ms.__version__}"
    passed = all(step["status"] == "passed" for step in steps)
    result = {"card": card, "model": Path(args.model).name, "versions": versions, "steps": steps, "passed": passed}
    (out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [f"# `benchmarks/gpu.sh` on {card}", "", f"{versions}.", "", "| step | status | seconds |", "|---|---|---|"]
    lines += [f"| {step['step']} | {step['status']} | {step['seconds']} |" for step in steps]
    print("\n".join(lines))
    for step in steps:
        text = (printed / f"{step['step']}.md").read_text().strip() or "Nothing was printed."
        lines += ["", f"## {step['step']}", "", f"```\n{text}\n```" if step["step"] == "audit" else text]
    (out / "gpu.md").write_text("\n".join(lines) + "\n")
    sys.exit(not passed)


def options() -> Iterator[tuple[str, Any]]:
    yield "--model", DEFAULT
    yield "--device", "cuda"
    yield "--tokens", 64  # of each text in `parity`
    yield "--repeats", 15
    yield "--seconds", 60.0  # of training
    yield "--texts", 1024
    yield "--printed", ""  # the folder with what the steps printed


def main() -> None:
    steps: dict[str, Callable[[argparse.Namespace], Any]] = {
        step.__name__: step for step in (parity, identity, curve, train, tiny, page)
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=steps)
    parser.add_argument("out", metavar="OUT")
    for name, default in options():
        parser.add_argument(name, type=type(default), default=default)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    measured = steps[args.step](args)
    if measured:
        (Path(args.out) / f"{args.step}.json").write_text(json.dumps(measured) + "\n")
        sys.exit(measured.pop("failed", False))


if __name__ == "__main__":
    main()
