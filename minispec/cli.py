"""The `minispec` command. Results go to stdout; progress, notes and errors to stderr.

A mistake of the user's ends with one line that says what was wrong and what to do, and exit status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from minispec import __version__

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel

METHODS = ("autoregressive", "ngram")
DEMO_PROMPT = "Explain in a short paragraph why the sky is blue during the day and red in the evening."


class Parser(argparse.ArgumentParser):
    """One line for a mistake, and no abbreviated options."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a mark in its place
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        silence_stdout()
    except (ValueError, OSError) as error:
        fail(args, str(error))
    except MemoryError:
        fail(args, "out of memory; use a smaller model, fewer tokens or a shorter prompt")
    except KeyboardInterrupt:
        sys.exit(130)


def fail(args: argparse.Namespace, message: str) -> NoReturn:
    print(f"minispec {args.command}: error: {message}", file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stdout.flush()  # what was printed before the error
    silence_stdout()  # what could not be written must not be tried again at exit
    sys.exit(2)


def silence_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="minispec", description="Speculative decoding on a real language model.")
    parser.add_argument("--version", action="version", version=f"minispec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    info = commands.add_parser("info", help="versions, device, threads, what dtype pays here, where the weights are")
    info.set_defaults(run=run_info)

    fetch = commands.add_parser("fetch", help="bring a model into the cache, once")
    fetch.add_argument("name", nargs="?", default="smollm2-135m", metavar="NAME", help="default: smollm2-135m (93 MB)")
    fetch.set_defaults(run=run_fetch)

    demo = commands.add_parser("demo", help="every method on one request, in the terminal, with a table")
    demo.add_argument("--prompt", default=DEMO_PROMPT, help="what to ask (default: why the sky is blue)")
    demo.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    add_model_options(demo)
    demo.set_defaults(run=run_demo)

    generate = commands.add_parser("generate", help="generate text by one method")
    generate.add_argument("--method", default="autoregressive", metavar="M", help=f"one of {', '.join(METHODS)}")
    generate.add_argument("--prompt", required=True, help="what to ask; a chat message where the model has a template")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    generate.add_argument("--top-k", type=int, default=0, metavar="K", help="0 (default) is off")
    generate.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 (default) is off")
    generate.add_argument("--seed", type=int, default=0, metavar="S")
    generate.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    generate.add_argument("--stop", action="append", metavar="TEXT", help="end where this text appears (repeatable)")
    generate.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    add_model_options(generate)
    generate.set_defaults(run=run_generate)

    audit = commands.add_parser("audit", help="is every method lossless? checks with a verdict each")
    audit.add_argument("--methods", nargs="+", default=list(METHODS[1:]), metavar="M", help="default: all that draft")
    audit.add_argument("--full", action="store_true", help="every request, every batch size, more samples")
    audit.add_argument("--dtype", default="float32", metavar="D", help="for token identity (default: float32)")
    audit.set_defaults(run=run_audit)

    train = commands.add_parser("train", help="make the text that drafters learn from")
    stages = train.add_subparsers(dest="stage", required=True, metavar="STAGE", parser_class=Parser)
    data = stages.add_parser("data", help="let the target answer prompts of eight kinds; run again, it goes on")
    data.add_argument("--out", default="training/text.npz", metavar="FILE", help="default: training/text.npz")
    data.add_argument("--tokens", type=int, default=3_000_000, metavar="N", help="answer tokens (default: 3,000,000)")
    data.add_argument(
        "--batch", type=int, default=128, metavar="N", help="answers at a time, a multiple of 4 (default: 128)"
    )
    data.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    data.add_argument("--seed", type=int, default=0, metavar="S")
    add_model_options(data)
    data.set_defaults(run=run_train_data)
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m", metavar="ID", help="smollm2-135m, a hub id or a folder")
    parser.add_argument("--dtype", default="auto", metavar="D", help="auto, float32, bfloat16, float16 or float64")
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:N or mps")


def check_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; use one of {', '.join(METHODS)}")


def check_budget(max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be 1 or more, but is {max_new_tokens}")


def make_drafter(method: str, lm: LanguageModel) -> Drafter | None:
    """The drafter of a method; None for autoregressive decoding."""
    if method == "ngram":
        from minispec.drafters.ngram import NGram

        return NGram()
    return None


def run_info(args: argparse.Namespace) -> None:
    import platform

    import torch
    import transformers

    from minispec import hub

    device = hub.pick_device()
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    folder = hub.home() / hub.DEFAULT
    there = hub.sha256(folder / "model.safetensors") == hub.WEIGHTS_SHA256
    print(f"minispec      {__version__}")
    print(f"python        {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"torch         {torch.__version__}")
    print(f"transformers  {transformers.__version__}")
    print(f"device        {device} ({name})")
    print(f"threads       {torch.get_num_threads()} of {os.cpu_count()} processors")
    print(f"dtype auto    {str(hub.pick_dtype('auto', device)).removeprefix('torch.')}")
    print(f"weights       {folder} ({'there, checksum right' if there else 'not there: run `minispec fetch`'})")
    if there:
        print("\nOne pass of the default target, milliseconds (median of 15, after 64 tokens), measured now:", flush=True)
        print(f"{'dtype':<10}{'1 token':>10}{'8 tokens':>10}{'8 against 1':>14}")
        for dtype in ("bfloat16", "float32"):
            one, eight = pass_ms(hub.load(dtype=dtype, device=str(device)), (1, 8))
            print(f"{dtype:<10}{one:>10.1f}{eight:>10.1f}{eight / one:>14.2f}")
        print("The nearer the last column is to 1, the more speculative decoding can win here. If something else keeps")
        print("the processor busy, these numbers mean little; passes far over 100 ms are a sign of it.")


def pass_ms(lm: LanguageModel, sizes: tuple[int, ...]) -> list[float]:
    """Milliseconds of one pass over each number of tokens: medians of 15, taken in turn."""
    import statistics

    import torch

    from minispec.trace import Clock

    model, cache = lm.model, lm.model.new_cache(1, 64 + max(sizes))
    tokens = torch.arange(64 + max(sizes), device=model.device)[None] % model.config.vocab_size
    model(tokens[:, :64], cache)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(15):
        for size in sizes:
            cache.lengths = [64]
            clock = Clock(model.device)
            model(tokens[:, :size], cache)
            clock.mark()
            times[size] += clock.read()
    return [1e3 * statistics.median(times[size]) for size in sizes]


def run_fetch(args: argparse.Namespace) -> None:
    from minispec.hub import fetch

    print(fetch(args.name))


def run_generate(args: argparse.Namespace) -> None:
    check_method(args.method)
    check_budget(args.max_new_tokens)
    from minispec import hub
    from minispec.sampling import Sampling

    sampling = Sampling(args.temperature, args.top_k, args.top_p)
    lm = hub.load(args.model, args.device, args.dtype)
    options = {"sampling": sampling, "seed": args.seed, "max_new_tokens": args.max_new_tokens, "stop": args.stop}
    if lm.tokenizer is None:
        raise ValueError(f"{args.model} has no tokenizer, so a text prompt cannot be read")
    generation = show_stream(lm, args.prompt, make_drafter(args.method, lm), show=not args.json, **options)
    trace = generation.trace
    if args.json:
        report = {
            "method": args.method,
            "model": args.model,
            "dtype": str(lm.model.dtype).removeprefix("torch."),
            "prompt_tokens": len(lm.encode(args.prompt)),
            "tokens": generation.tokens.tolist(),
            "text": generation.text,
            "finish_reason": generation.finish_reason,
            "target_passes": len(trace.rounds) + 1,
            "tokens_per_pass": trace.tokens_per_pass,
            "acceptance_by_position": trace.acceptance_by_position,
            "ttft_s": trace.ttft_s,
            "tpot_s": trace.tpot_s,
        }
        print(json.dumps(report))
    else:
        print(
            f"{len(generation.tokens)} tokens ({generation.finish_reason}) in {len(trace.rounds) + 1} target passes; "
            f"first token after {trace.ttft_s:.2f} s, then {1 / trace.tpot_s if trace.tpot_s else 0:.1f} tokens a second",
            file=sys.stderr,
        )


def show_stream(lm: LanguageModel, prompt: Any, drafter: Drafter | None, show: bool, **options: Any) -> Any:
    """Generate, printing text as it is settled (`show`), else drawing a progress bar on stderr."""
    from tqdm import tqdm

    from minispec.decode import Decoder
    from minispec.text import TextStream

    decoder = Decoder(lm, [prompt], drafter, **options)
    text = TextStream(lm.tokenizer, decoder.stop)
    quiet = show or not sys.stderr.isatty()
    with tqdm(total=decoder.max_new_tokens, unit="token", disable=quiet, leave=False) as bar:
        for events in decoder.run():
            event = events[0]
            tokens = [event] if isinstance(event, int) else event.emitted
            bar.update(len(tokens))
            if show:
                print(text.push(tokens, last=not decoder.active), end="", flush=True)
    if show:
        print()
    return decoder.results()[0]


def run_demo(args: argparse.Namespace) -> None:
    check_budget(args.max_new_tokens)
    from minispec import hub
    from minispec.audit import first_gap
    from minispec.decode import generate

    lm = hub.load(args.model, args.device, args.dtype)
    generate(lm, args.prompt, max_new_tokens=4)  # the first passes of a process are slow
    rows, texts = [], []
    for method in METHODS:
        drafter = make_drafter(method, lm)
        print(f"--- {method} ---")
        generation = show_stream(lm, args.prompt, drafter, show=True, max_new_tokens=args.max_new_tokens)
        trace = generation.trace
        seconds = trace.ttft_s + sum(round.seconds for round in trace.rounds)
        texts.append(generation.tokens)
        gap = first_gap(lm, lm.encode(args.prompt), texts[0], texts[-1])
        if gap is not None:
            print(
                f"(This text parts from the first one where its two best logits are {gap:.3f} apart: a tie, up to rounding."
            )
            print(" With --dtype float32 the texts are the same; `minispec audit` shows that they must be.)")
        rows.append((method, len(generation.tokens), len(trace.rounds), trace, seconds))
        print()
    print(f"{'method':<16}{'tokens':>8}{'rounds':>8}{'tokens a round':>16}{'first token':>13}{'tokens a second':>17}")
    for method, tokens, rounds, trace, seconds in rows:
        rate = f"{tokens / seconds:.1f}"
        print(f"{method:<16}{tokens:>8}{rounds:>8}{trace.tokens_per_pass:>16.2f}{trace.ttft_s:>11.2f} s{rate:>17}")
    dtype = str(lm.model.dtype).removeprefix("torch.")
    print(f"\n{lm.name}, {dtype}, on {lm.model.device}. A pass reads the whole model, whether for one token or for several.")


def run_audit(args: argparse.Namespace) -> None:
    for method in args.methods:
        check_method(method)
    from tqdm import tqdm

    from minispec import audit, hub

    failed, count = [], 0
    with tqdm(unit="check", disable=not sys.stderr.isatty(), leave=False) as bar:
        for check in audit.run(hub.load(dtype=args.dtype), tuple(args.methods), args.full):
            count += 1
            bar.update()
            bar.clear()
            print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.measured}", flush=True)
            failed += [] if check.passed else [check.name]
    print(f"\n{count} checks, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    if failed:
        sys.exit(1)


def run_train_data(args: argparse.Namespace) -> None:
    check_budget(args.max_new_tokens)
    if args.tokens < 1 or args.batch < 4 or args.batch % 4:
        raise ValueError("--tokens must be 1 or more, and --batch a multiple of 4")
    from pathlib import Path

    from minispec import hub
    from minispec.train.data import write_corpus

    file = Path(args.out)
    if not file.parent.is_dir():
        raise ValueError(f"the folder {file.parent} does not exist; make it first")
    lm = hub.load(args.model, args.device, args.dtype)
    corpus = write_corpus(lm, file, args.tokens, args.batch, args.max_new_tokens, args.seed)
    print(f"{file}: {len(corpus.texts)} texts, {corpus.tokens} answer tokens, {file.stat().st_size / 1e6:.1f} MB")
