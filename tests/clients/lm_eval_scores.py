"""lm-evaluation-harness against the server: a multiple choice and a perplexity task made from the held-out text of
tales, with transformers' tokenizer and with the server's, with and without tokenized requests, each number against a
computation in float64 (tests/vectors/reference.py).

Run by `make test-clients`; writes what it measured to tests/clients/results/lm_eval.json and exits 1 if a number is off.
"""
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  OPENAI_API_KEY="none")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD_DIR", "build"))
WORK = os.path.join(BUILD, "clients")
os.environ["HF_HOME"] = os.path.join(WORK, "hf")
MODEL = os.path.join(ROOT, "config", "models", "tales")
RESULT = os.path.join(ROOT, "tests", "clients", "results", "lm_eval.json")
BOUND = 1e-3  # of a sum of log-probabilities

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "vectors"))
from reference import Reference  # noqa: E402


def make_tasks(text):
    """heldout_choice: which of four goes on; heldout_perplexity: whole passages."""
    def words_from(at, n):
        start = text.index(" ", at)
        return " ".join(text[start:start + 40 * n].split()[:n])
    choice = []
    for i in range(16):
        at = 2000 + i * 7500
        context = words_from(at, 40)
        goes_on = " ".join(text[text.index(" ", at):][:2400].split()[40:48])
        others = [words_from((at + 20011 * k) % (len(text) - 3000), 8) for k in (1, 2, 3)]
        gold = i % 4
        choice.append({"query": context, "choices": others[:gold] + [goes_on] + others[gold:], "gold": gold})
    passages = [{"page": text[text.index("\n", 5000 + i * 30000) + 1:][:1500]} for i in range(4)]
    for name, docs, more in (
            ("heldout_choice", choice, {
                "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "choices", "doc_to_target": "gold",
                "target_delimiter": " ", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}),
            ("heldout_perplexity", passages, {
                "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{page}}",
                "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}]})):
        path = os.path.join(WORK, name + ".jsonl")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(d) + "\n" for d in docs)
        with open(os.path.join(WORK, name + ".yaml"), "w", encoding="utf-8") as f:
            json.dump({"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": path}}, "test_split": "test",
                       **more}, f)  # JSON is YAML


def make_tokenizer():
    """transformers reads tokenizer.json, but knows no class of the name in tokenizer_config.json."""
    folder = os.path.join(WORK, "tokenizer")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f, open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as g:
        g.write(f.read())
    with open(os.path.join(MODEL, "tokenizer_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


class Server:
    def __enter__(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{s.getsockname()[1]}"
        log = open(os.path.join(WORK, "server.log"), "w", encoding="utf-8")
        self.process = subprocess.Popen([os.path.join(BUILD, "rodimus"), "serve", "--port", self.url.rpartition(":")[2], "--model", MODEL],
                                        stdout=log, stderr=log)
        for _ in range(300):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).read()
                return self
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the server did not start, see build/clients/server.log")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def tokens(self, text):
        request = urllib.request.Request(self.url + "/tokenize", json.dumps({"prompt": text}).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))["tokens"]


def direct(task, sample, server, reference, prefix_id):
    """What float64 says of one sample: [(log-likelihood, greedy)] per request."""
    if task == "heldout_perplexity":
        text, = sample["arguments"][0]
        return [reference.loglikelihood([prefix_id] + server.tokens(text), 1)]
    pairs = [(server.tokens(context), server.tokens(context + rest)) for context, rest in sample["arguments"]]
    return [reference.loglikelihood(all_, len(context)) for context, all_ in pairs]


def numbers(resp):
    """[log-likelihood, greedy] as the harness logged it: a pair, or the sum alone."""
    while isinstance(resp, (list, tuple)) and len(resp) == 1:
        resp = resp[0]
    return tuple(resp) if isinstance(resp, (list, tuple)) else (resp, None)


def main():
    os.makedirs(WORK, exist_ok=True)
    with open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8") as f:
        make_tasks(f.read())
    # A remote bos_token of id 0 is none to the harness, which then begins with eos_token, unless it is told.
    backends = {"huggingface": {"tokenizer": make_tokenizer()}, "remote": {"custom_prefix_token_id": 0}}
    reference, known = Reference(MODEL), {}
    report = {"lm_eval": lm_eval.__version__, "model": "tales", "bound": BOUND, "runs": []}
    with Server() as server:
        for backend, tokenized, batch in itertools.product(backends, (True, False), (1, 4)):
            began = time.monotonic()
            out = lm_eval.simple_evaluate(
                model="local-completions", tasks=["heldout_choice", "heldout_perplexity"], log_samples=True, bootstrap_iters=0,
                task_manager=TaskManager(include_path=WORK, include_defaults=False), batch_size=batch,
                model_args={"model": "tales", "base_url": server.url + "/v1/completions", **backends[backend], "tokenizer_backend": backend,
                            "tokenized_requests": tokenized, "max_length": 2048, "num_concurrent": 4})
            seconds, worst, n, greedy_other = time.monotonic() - began, 0.0, 0, 0
            for task, samples in out["samples"].items():
                for sample in samples:
                    key = (task, sample["doc_id"])
                    if key not in known:
                        known[key] = direct(task, sample, server, reference, 0)
                    for resp, (want, greedy) in zip(sample["resps"], known[key], strict=True):
                        got, got_greedy = numbers(resp)
                        worst, n = max(worst, abs(float(got) - want)), n + 1
                        greedy_other += got_greedy is not None and str(got_greedy) != str(greedy)
            metrics = {task: {k.split(",")[0]: v for k, v in r.items() if k.endswith(",none") and isinstance(v, float) and "stderr" not in k}
                       for task, r in out["results"].items()}
            report["runs"].append({"tokenizer_backend": backend, "tokenized_requests": tokenized, "batch_size": batch,
                                   "log_likelihoods": n, "largest_difference": worst, "greedy_differs": greedy_other, "seconds": round(seconds, 1), "results": metrics})
            print(json.dumps(report["runs"][-1]))
    os.makedirs(os.path.dirname(RESULT), exist_ok=True)
    with open(RESULT, "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    good = all(r["log_likelihoods"] >= 68 and r["largest_difference"] < BOUND and not r["greedy_differs"] and
               r["results"] == report["runs"][0]["results"] for r in report["runs"])
    print("1 passed, 0 failed" if good else "0 passed, 1 failed")
    sys.exit(not good)


main()
