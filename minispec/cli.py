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
    from pathlib import Path

    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel
    from minispec.trace import Trace
    from minispec.train.data import Corpus

METHODS = ("autoregressive", "draft", "ngram", "medusa", "eagle")
TRAINED = ("draft", "medusa", "eagle")  # these have weights
VERDICTS = {True: "ok  ", False: "FAIL", None: "    "}
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
    except RuntimeError as error:
        if "out of memory" not in str(error) and "can't allocate memory" not in str(error):
            raise
        fail(args, "out of memory; use a smaller model, a smaller batch, fewer tokens or a shorter prompt")
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
    generate.add_argument("--drafter", metavar="PATH", help="a folder or hub id to draft with (default: the one shipped)")
    generate.add_argument("--num-tokens", type=int, metavar="N", help="tokens drafted a round, at most")
    generate.add_argument("--tree", choices=["chain", "static", "dynamic"], help="what medusa and eagle draft")
    generate.add_argument("--rule", choices=["lossless", "typical"], default="lossless", help="typical is not lossless")
    generate.add_argument("--prompt", required=True, help="what to ask; a chat message where the model has a template")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    generate.add_argument("--top-k", type=int, default=0, metavar="K", help="0 (default) is off")
    generate.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 (default) is off")
    generate.add_argument("--seed", type=int, default=0, metavar="S")
    generate.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    generate.add_argument("--stop", action="append", metavar="TEXT", help="end where this text appears (repeatable)")
    generate.add_argument("--compile", action="store_true", help="graphs on CUDA, packed weights on a CPU")
    generate.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    add_model_options(generate)
    generate.set_defaults(run=run_generate)

    audit = commands.add_parser("audit", help="is every method lossless? checks with a verdict each")
    audit.add_argument("--methods", nargs="+", default=list(METHODS[1:]), metavar="M", help="default: all that draft")
    audit.add_argument("--full", action="store_true", help="every request, every batch size, more samples")
    audit.add_argument("--dtype", default="float32", metavar="D", help="for token identity (default: float32)")
    audit.set_defaults(run=run_audit)

    bench = commands.add_parser("bench", help="what each method gains here; an interrupted run goes on from its file")
    bench.add_argument("--methods", nargs="+", metavar="M", help="or M:TREE, as eagle:chain (default: all that can draft)")
    bench.add_argument("--drafter", metavar="PATH", help="folder or hub id for the method draft (default: shipped)")
    bench.add_argument("--peers", choices=["transformers"], help="measure transformers' own counterparts in turn")
    bench.add_argument("--compile", action="store_true", help="every method compiled too: graphs on CUDA, packed weights")
    bench.add_argument("--served", metavar="DIR", help="beside what benchmarks/serve.sh measured of a server")
    bench.add_argument("--requests", metavar="FILE", help="JSON lines as in minispec/data/requests.jsonl (default)")
    bench.add_argument("--limit", type=int, default=24, metavar="N", help="requests, spread over the file (default: 24)")
    bench.add_argument("--batch", default="1", metavar="SIZES", help="batch sizes, such as 1,4,16 (default: 1)")
    bench.add_argument("--temperature", default="0", metavar="T", help="one or several, such as 0,0.7 (default: 0)")
    bench.add_argument("--repeats", type=int, default=3, metavar="N", help="times that all is run (default: 3)")
    bench.add_argument("--seed", type=int, default=0, metavar="S", help="of the order and the sampling (default: 0)")
    bench.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="default: 96")
    bench.add_argument("--num-tokens", type=int, metavar="N", help="tokens drafted a round, at most")
    bench.add_argument("--out", required=True, metavar="FILE", help="for the JSON; tables and figures are put beside it")
    add_model_options(bench)
    bench.set_defaults(run=run_bench)

    report = commands.add_parser("report", help="tables and figures, once more, from a file that bench wrote")
    report.add_argument("file", metavar="FILE", help="tables go to stdout and FILE.md, figures into the folder FILE")
    report.add_argument("--served", metavar="DIR", help="beside what benchmarks/serve.sh measured of a server")
    report.set_defaults(run=run_report)

    export = commands.add_parser("export", help="write a drafter as a folder that other software opens")
    export.add_argument("drafter", choices=TRAINED)
    export.add_argument("folder", metavar="DIR", help="a new folder")
    export.add_argument(
        "--layout", choices=["vllm", "speculators", "original"], default="vllm", help="who is to open it (default: vllm)"
    )
    export.add_argument("--source", metavar="PATH", help="the drafter's folder (default: the one shipped)")
    add_model_options(export)
    export.set_defaults(run=run_export, dtype="bfloat16")

    grade = commands.add_parser("grade", help="points and diagnoses for exercises: a notebook, a .py, or a folder of them")
    grade.add_argument("paths", nargs="+", metavar="PATH")
    grade.add_argument("--checks", metavar="DIR", help="a folder with further cases of your own (see TEACHING.md)")
    grade.add_argument("--json", metavar="F", help="write the reports; interrupted, the same command goes on from there")
    grade.add_argument("--csv", metavar="F", help="a row a submission, a column a task")
    grade.add_argument("--gradescope", metavar="F", help="results.json for Gradescope's autograder, one submission")
    grade.set_defaults(run=run_grade)

    train = commands.add_parser("train", help="make the text that drafters learn from, and train a drafter")
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

    for name, what, rate in (
        ("draft", "distil a draft model from the target; run again, it goes on", 5e-4),
        ("medusa", "train Medusa heads on the target's hidden states", 1e-3),
        ("eagle", "train an EAGLE head on the target's hidden states", 1e-3),
    ):
        stage = stages.add_parser(name, help=what)
        stage.add_argument("--text", default="training/text.npz", metavar="FILE", help="default: training/text.npz")
        stage.add_argument("--out", required=True, metavar="DIR", help="the folder to write; what was there is replaced")
        if name == "draft":
            stage.add_argument("--layers", type=int, nargs="+", metavar="I", help="take these of the target's layers")
            stage.add_argument("--width", type=int, default=192, metavar="N", help="without --layers: width (default: 192)")
            stage.add_argument("--depth", type=int, default=4, metavar="N", help="without --layers: layers (default: 4)")
        else:
            stage.add_argument("--states", metavar="DIR", help="where the target's hidden states are cached (5 kB a token)")
        if name == "medusa":
            stage.add_argument("--heads", type=int, default=4, metavar="N", help="tokens ahead (default: 4)")
            stage.add_argument("--depth", type=int, default=1, metavar="N", help="residual blocks a head (default: 1)")
        elif name == "eagle":
            stage.add_argument("--layers", type=int, nargs="+", metavar="I", help="hidden states to fuse (EAGLE-3's three)")
            stage.add_argument("--unroll", type=int, default=3, metavar="N", help="tokens drafted in training (default: 3)")
            stage.add_argument("--eagle", type=int, default=3, choices=[1, 3], help="1: from the last hidden state alone")
            stage.add_argument("--train-head", action="store_true", help="train the output matrix too")
        stage.add_argument("--vocabulary", type=int, default=8192, metavar="N", help="ids that it may draft (default: 8192)")
        stage.add_argument("--steps", type=int, default=2000, metavar="N")
        stage.add_argument("--batch", type=int, default=8, metavar="N", help="texts a step and process (default: 8)")
        stage.add_argument("--lr", type=float, default=rate, metavar="X")
        stage.add_argument("--seed", type=int, default=0, metavar="S")
        stage.add_argument("--model", default="smollm2-135m", metavar="ID", help="smollm2-135m, a hub id or a folder")
        stage.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:N or mps")
        stage.set_defaults(run=run_train_draft if name == "draft" else run_train_ahead)
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m", metavar="ID", help="smollm2-135m, a hub id or a folder")
    parser.add_argument("--dtype", default="auto", metavar="D", help="auto, float32, bfloat16, float16 or float64")
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:N or mps")


def check_methods(methods: list[str]) -> None:
    for method in methods:
        if "," in method:
            raise ValueError(f"--methods are separated by spaces, not commas: --methods {' '.join(METHODS[1:])}")
        check_method(method)


def check_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; use one of {', '.join(METHODS)}")


def check_folder(file: Path) -> None:
    if not file.parent.is_dir():
        raise ValueError(f"the folder {file.parent} does not exist; make it first")


def check_budget(max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be 1 or more, but is {max_new_tokens}")


def make_drafter(
    method: str, lm: LanguageModel, source: str | None = None, num_tokens: int | None = None, tree: str | None = None
) -> Drafter | None:
    """The drafter of a method; None for autoregressive decoding."""
    options: dict[str, Any] = {} if num_tokens is None else {"num_tokens": num_tokens}
    if tree and method not in ("medusa", "eagle"):
        raise ValueError(f"the method {method} drafts no trees, so --tree says nothing; choose --method medusa or eagle")
    options |= {"tree": tree} if tree else {}
    if options and method == "autoregressive":
        raise ValueError("the method autoregressive drafts nothing, so --num-tokens says nothing; choose another --method")
    if source and method in ("autoregressive", "ngram"):
        raise ValueError(
            f"the method {method} has no weights, so --drafter says nothing; choose --method {', '.join(TRAINED)}"
        )
    if method == "autoregressive":
        return None
    if method == "ngram":
        from minispec.drafters.ngram import NGram

        return NGram(**options)
    from minispec.checkpoints import load_drafter

    return load_drafter(method, lm, source, **options)


def run_info(args: argparse.Namespace) -> None:
    import platform

    import torch
    import transformers

    from minispec import hub
    from minispec.bench import cost_curve

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
        print("\nOne pass of the default target, milliseconds (median of 15, after 200 tokens), measured now:", flush=True)
        print(f"{'dtype':<10}{'1 token':>10}{'8 tokens':>10}{'8 against 1':>14}")
        for dtype in ("bfloat16", "float32"):
            cost = cost_curve(hub.load(dtype=dtype, device=str(device)), (1, 8))
            print(f"{dtype:<10}{1e3 * cost[1]:>10.1f}{1e3 * cost[8]:>10.1f}{cost[8] / cost[1]:>14.2f}")
        print("The nearer the last column is to 1, the more speculative decoding can win here. If something else keeps")
        print("the processor busy, these numbers mean little; passes far over 100 ms are a sign of it.")


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
    options["rule"] = args.rule
    if lm.tokenizer is None:
        raise ValueError(f"{args.model} has no tokenizer, so a text prompt cannot be read")
    drafter = make_drafter(args.method, lm, args.drafter, args.num_tokens, args.tree)
    if args.compile:
        from minispec.compile import compiled, compiled_drafter

        lm, drafter = compiled(lm), compiled_drafter(drafter)
    generation = show_stream(lm, args.prompt, drafter, show=not args.json, **options)
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
    from minispec.audit import TIE, first_gap
    from minispec.decode import generate

    lm = hub.load(args.model, args.device, args.dtype)
    generate(lm, args.prompt, max_new_tokens=4)  # the first passes of a process are slow
    methods = METHODS if lm.name == hub.DEFAULT else [method for method in METHODS if method not in TRAINED]
    traces, texts = {}, []
    for method in methods:
        drafter = make_drafter(method, lm)
        if drafter:
            generate(lm, args.prompt, drafter, max_new_tokens=4)
        print(f"--- {method} ---")
        generation = show_stream(lm, args.prompt, drafter, show=True, max_new_tokens=args.max_new_tokens)
        traces[method] = generation.trace
        texts.append(generation.tokens)
        gap = first_gap(lm, lm.encode(args.prompt), texts[0], texts[-1])
        if gap is not None:
            parting = f"(This text parts from the first one where its two best logits are {gap:.3f} apart: "
            if gap < TIE[lm.model.dtype]:
                print(f"{parting}a tie, up to rounding.")
                print(" With --dtype float32 the texts are the same; `minispec audit` shows that they must be.)")
            else:
                print(f"{parting}NO tie, so one of the two is wrong.)")
        print()
    print(f"{'method':<16}{'tokens':>8}{'rounds':>8}{'tokens a round':>16}{'first token':>13}{'tokens a second':>17}")
    rates = {}
    for (method, trace), tokens in zip(traces.items(), map(len, texts), strict=True):
        rates[method] = tokens / (trace.ttft_s + sum(round.seconds for round in trace.rounds))
        print(
            f"{method:<16}{tokens:>8}{len(trace.rounds):>8}{trace.tokens_per_pass:>16.2f}{trace.ttft_s:>11.2f} s"
            f"{rates[method]:>17.1f}"
        )
    dtype = str(lm.model.dtype).removeprefix("torch.")
    print(f"\n{lm.name}, {dtype}, on {lm.model.device}. A pass reads the whole model, whether for one token or for several.")
    plain = traces["autoregressive"].rounds
    for method, trace in traces.items():
        if plain and trace.rounds and method != "autoregressive":
            one = sum(round.verify_s for round in plain) / len(plain)
            print(explain(method, trace, one, rates[method] / rates["autoregressive"]))


def explain(method: str, trace: Trace, one: float, speedup: float) -> str:
    """Why a method gained or lost, in passes over one token, which take `one` second each."""
    count = len(trace.rounds)
    nodes = sum(len(round.drafted) for round in trace.rounds) / count
    verify, draft = (sum(getattr(round, name) for round in trace.rounds) / count / one for name in ("verify_s", "draft_s"))
    verdict = f"{speedup:.2f} times as fast" if speedup >= 1 else f"slower here ({speedup:.2f} times as fast)"
    return (
        f"{method}: {verdict}. A round drafts {nodes:.1f} tokens and emits {trace.tokens_per_pass:.2f}; checking them costs "
        f"{verify:.2f} passes over one token, and drafting them {draft:.2f}."
    )


def run_audit(args: argparse.Namespace) -> None:
    check_methods(args.methods)
    from tqdm import tqdm

    from minispec import audit, hub

    failed, count = [], 0
    with tqdm(unit="check", disable=not sys.stderr.isatty(), leave=False) as bar:
        for check in audit.run(hub.load(dtype=args.dtype), tuple(args.methods), args.full):
            count += check.passed is not None
            bar.update()
            bar.clear()
            print(f"{VERDICTS[check.passed]}  {check.name}: {check.measured}", flush=True)
            failed += [check.name] if check.passed is False else []
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

    check_folder(file := Path(args.out))
    lm = hub.load(args.model, args.device, args.dtype)
    corpus = write_corpus(lm, file, args.tokens, args.batch, args.max_new_tokens, args.seed)
    print(f"{file}: {len(corpus.texts)} texts, {corpus.tokens} answer tokens, {file.stat().st_size / 1e6:.1f} MB")


def open_training(args: argparse.Namespace) -> tuple[LanguageModel, Corpus, Path]:
    """The target, its texts, and where the result goes; ValueError for what cannot be trained."""
    if args.steps < 1 or args.batch < 1 or not args.lr > 0:
        raise ValueError("--steps and --batch must be 1 or more, and --lr above 0")
    from pathlib import Path

    from minispec import hub
    from minispec.train.data import Corpus

    check_folder(out := Path(args.out))
    corpus, device = Corpus.load(Path(args.text)), args.device
    if "LOCAL_RANK" in os.environ:  # one of several processes, each with its own device
        from accelerate import PartialState

        device = str(PartialState(cpu=args.device == "cpu").device)
    lm = hub.load(args.model, device, "float32")
    if corpus.target != lm.name:
        raise ValueError(f"{args.text} holds answers of {corpus.target}, not of {lm.name}; let {lm.name} write its own")
    return lm, corpus, out


def run_train_draft(args: argparse.Namespace) -> None:
    from minispec import hub
    from minispec.train.draft import train_draft

    lm, corpus, out = open_training(args)
    texts, held = corpus.split()
    recipe = {"layers": args.layers, "width": args.width, "depth": args.depth, "drafted": args.vocabulary}
    recipe |= {"steps": args.steps, "batch": args.batch, "lr": args.lr, "seed": args.seed}
    measured = train_draft(lm, texts, held, out, hub.home() / "labels", **recipe)
    if not measured:
        return  # another process reports
    size = (out / "model.safetensors").stat().st_size / 1e6
    print(f"{out}: {size:.1f} MB; {', '.join(f'{name} {value:.3f}' for name, value in measured.items())}")


def run_train_ahead(args: argparse.Namespace) -> None:
    from pathlib import Path

    from minispec import hub

    lm, corpus, out = open_training(args)
    folder = Path(args.states) if args.states else hub.home() / "states"
    recipe = {"drafted": args.vocabulary, "steps": args.steps, "batch": args.batch, "lr": args.lr, "seed": args.seed}
    if args.stage == "medusa":
        from minispec.train.medusa import train_medusa

        measured = train_medusa(lm, corpus, folder, out, recipe | {"heads": args.heads, "depth": args.depth})
    else:
        from minispec.train.eagle import train_eagle

        own = {"layers": args.layers, "unroll": args.unroll, "eagle": args.eagle, "train_head": args.train_head}
        measured = train_eagle(lm, corpus, folder, out, recipe | own)
    if measured:
        size = (out / "model.safetensors").stat().st_size / 1e6
        rates = " ".join(f"{rate:.3f}" for rate in measured["held_out_acceptance"])
        print(f"{out}: {size:.1f} MB; on held-out texts accepted by position {rates}")


def run_bench(args: argparse.Namespace) -> None:
    methods = [method.partition(":")[0] for method in args.methods or []]
    check_methods(methods)
    check_budget(args.max_new_tokens)
    sizes = numbers(args.batch, int, "--batch must be sizes such as 1,4,16")
    temperatures = numbers(args.temperature, float, "--temperature must be numbers such as 0,0.7")
    if min(sizes) < 1 or args.repeats < 1:
        raise ValueError("--batch must be sizes such as 1,4,16, and --repeats 1 or more")
    if args.limit < 1:
        raise ValueError(f"--limit must be 1 or more, but is {args.limit}")
    if args.peers and (1 not in sizes or 0 not in temperatures):
        raise ValueError("--peers measures single greedy requests; let --batch name 1, and --temperature 0")
    from pathlib import Path

    from minispec import hub
    from minispec.audit import REQUESTS, read_requests, spread
    from minispec.bench import bench, is_complete, read_result, write_json
    from minispec.sampling import Sampling
    from minispec.served import read_served

    for temperature in temperatures:
        Sampling(temperature)
    served = read_served(Path(args.served), args.model) if args.served else None
    file, begun = Path(args.out), None
    check_folder(file)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file in it")
    if file.suffix != ".json":
        raise ValueError(f"{file} must end in .json, since tables and figures are put beside it")
    if file.exists() and is_complete(begun := read_result(file)):
        raise ValueError(f"{file} holds a finished result; name a new file, or see it with `minispec report {file}`")
    requests = spread(read_requests(Path(args.requests) if args.requests else REQUESTS), args.limit)
    lm = hub.load(args.model, args.device, args.dtype)
    sources = {"draft": args.drafter}
    there = (
        METHODS if lm.name == hub.DEFAULT else [m for m in METHODS if m not in TRAINED or (m == "draft" and args.drafter)]
    )
    if args.drafter and args.methods and "draft" not in methods:
        raise ValueError("--drafter says what the method draft drafts with; add draft to --methods")
    drafters = {}
    for name in args.methods or there:
        method, _, tree = name.partition(":")
        if method != "autoregressive":
            drafters[name] = make_drafter(method, lm, sources.get(method), args.num_tokens, tree or None)
    result = bench(
        lm,
        drafters,
        requests,
        max_new_tokens=args.max_new_tokens,
        batches=sizes,
        temperatures=temperatures,
        repeats=args.repeats,
        seed=args.seed,
        peers=bool(args.peers),
        compile=args.compile,
        begun=begun,
        save=lambda result: write_json(result, file),
    )
    if served:
        write_json(result := result | {"served": served}, file)
    show_result(result, file)


def numbers(text: str, kind: Any, message: str) -> list[Any]:
    try:
        return list(dict.fromkeys(map(kind, text.split(","))))
    except ValueError:
        raise ValueError(message) from None


def run_report(args: argparse.Namespace) -> None:
    from pathlib import Path

    from minispec.bench import read_result
    from minispec.served import read_served

    file = Path(args.file)
    result = read_result(file)
    if args.served:
        result["served"] = read_served(Path(args.served), result["machine"]["model"])
    show_result(result, file.with_suffix("") if file.suffix == ".gz" else file)


def show_result(result: dict[str, Any], file: Path) -> None:
    from minispec.report import report

    print(report(result), flush=True)
    try:
        from minispec.figures import write
    except ImportError:
        print("figures need matplotlib: pip install matplotlib, then `minispec report`", file=sys.stderr)
        return
    print(f"tables and figures: {write(result, file)}", file=sys.stderr)


def run_export(args: argparse.Namespace) -> None:
    from pathlib import Path

    from minispec import hub
    from minispec.checkpoints import check_layout, export_drafter, load_drafter

    check_layout(args.drafter, args.layout)
    lm = hub.load(args.model, args.device, args.dtype)
    export_drafter(load_drafter(args.drafter, lm, args.source), lm, Path(args.folder), args.layout)
    print(args.folder)
    print(f"it opens here too: minispec generate --method {args.drafter} --drafter {args.folder}", file=sys.stderr)


def run_grade(args: argparse.Namespace) -> None:
    from minispec.grading.grade import command

    print(command(args.paths, args.checks, {"json": args.json, "csv": args.csv, "gradescope": args.gradescope}), end="")
