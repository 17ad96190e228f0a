"""Self-checks of the fast forms against plain ones, in a child process, each with a time budget: what hangs, fails or compiles too long is not used.

Training begins with the plain forms, or with those that were confirmed until then, and takes the others when they are."""
import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import time

BUDGET = {"scan_chunks": 20, "attention_varlen": 20, "attention_flash": 20, "scan_fla": 90, "compile": 40}  # seconds
LIMIT = {"attention": 0.03, "scan": 0.05, "compile": 0.1}  # of the norm that a form's values and gradients may be off
IMPORTS = 45  # more for a child's first check: PyTorch, CUDA


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def one_config():
    """Kernels defined within have one configuration to tune: the 242 of chunk_gla take minutes to compile, one after the other; ten do not."""
    from triton.runtime.autotuner import Autotuner
    whole = Autotuner.__init__

    def distance(c):
        tiles = [v for v in c.kwargs.values() if isinstance(v, int) and v > 0]
        return abs(math.log2(c.num_warps / 4)) + abs(c.num_stages - 2) + sum(abs(math.log2(v / 64)) for v in tiles)

    def init(self, fn, arg_names, configs, *args, **more):
        whole(self, fn, arg_names, sorted(configs, key=distance)[:1], *args, **more)
    Autotuner.__init__ = init
    try:
        yield
    finally:
        Autotuner.__init__ = whole


def use_fla(folder):
    """Imports chunk_gla from the folder ("": the installed one)."""
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    if "fla" not in sys.modules:
        with one_config():
            import fla.ops.gla  # noqa: F401


def compare(got, want):
    return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(got, want))


def check_attention(name, torch, forms, c, device):
    q, k, v = (torch.randn(2, 3072, c.heads, c.p, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    found = []
    for form in (forms.attention_mask, getattr(forms, name)):
        out = form(q, k, v, c.left)
        found.append([out] + list(torch.autograd.grad(out.float().square().sum(), (q, k, v))))
    return compare(found[1], found[0])


def check_scan(name, torch, forms, c, device):
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    make = lambda *s: torch.randn(*s, device=device, dtype=half)  # noqa: E731
    q, k, u = make(2, 256, c.m), torch.nn.functional.normalize(make(2, 256, c.m), dim=-1), make(2, 256, c.e)
    log_alpha = -torch.rand(2, 256, c.m, device=device) * torch.logspace(-3, 0.5, c.m, device=device)
    ins, back, found = [t.detach().requires_grad_() for t in (q, k, u, log_alpha)], torch.randn(2, 256, c.e, device=device), []
    for form in (forms.scan_plain, getattr(forms, name)):
        out = form(*ins).float()
        found.append([out] + list(torch.autograd.grad((out * back).sum(), ins)))
    return compare(found[1], found[0])


def check_fla(torch, forms, c, device, folders):
    """The first version that is right."""
    faults = []
    for folder in folders:
        try:
            use_fla(folder)
            worst = check_scan("scan_fla", torch, forms, c, device)
            if worst < LIMIT["scan"]:
                return worst, folder
            faults.append(f"{folder or 'installed'}: {worst:.1e} off")
        except Exception as fault:  # noqa: BLE001: the next version may do
            faults.append(f"{folder or 'installed'}: {type(fault).__name__} {str(fault)[:150]}")
        sys.path[:] = [p for p in sys.path if p != folder or not folder]
        for m in [m for m in sys.modules if m.split(".")[0] == "fla"]:
            del sys.modules[m]
    raise RuntimeError("; ".join(faults))


def check_compile(torch, forms, config, device, shape, confirmed):
    model = forms.Model(config).to(device)
    model.half = torch.bfloat16 if device.type == "cuda" else torch.float32
    for part in ("attention", "scan"):
        if part in confirmed:
            setattr(model, part, getattr(forms, confirmed[part]))
    x, keep = torch.randint(0, model.sizes.vocab, shape, device=device), torch.ones(shape[0], 1, 1, device=device)
    plain = model(x, x, keep).mean()
    plain.backward()
    slow = [p.grad.clone() for p in model.weights]
    model.zero_grad()
    model.parts = {n: torch.compile(f, dynamic=False) for n, f in forms.PARTS.items()}
    fast = model(x, x, keep).mean()
    fast.backward()
    worst = math.sqrt(sum((a - b.grad).square().sum().item() for a, b in zip(slow, model.weights)) / sum(a.square().sum().item() for a in slow))
    return max(worst, abs(fast.item() - plain.item()))


def child(pipe, names, config, shape, folders, confirmed, hang):
    end_with_parent()
    os.setsid()  # what a compiler starts ends with it
    import torch
    import model as forms
    torch.manual_seed(19)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    c = forms.Sizes(config)
    for name in names:
        kind = name.split("_")[0]
        if kind == "attention" and "attention" in confirmed:
            continue
        pipe.send(("begins", name, None))
        if hang == "check:" + name:
            time.sleep(10 ** 6)
        try:
            used = ""
            if name == "scan_fla":
                worst, used = check_fla(torch, forms, c, device, folders or [""])
            elif kind == "compile":
                if "fla" in confirmed:
                    use_fla(confirmed["fla"])
                worst = check_compile(torch, forms, config, device, shape, confirmed)
            else:
                worst = (check_attention if kind == "attention" else check_scan)(name, torch, forms, c, device)
            good = worst < LIMIT[kind]
            if good:
                confirmed[kind] = name
                if name == "scan_fla":
                    confirmed["fla"] = used
            pipe.send(("ends", name, (good, f"{worst:.1e} off" + ("" if good else ": not used"), used)))
        except Exception as fault:  # noqa: BLE001
            pipe.send(("ends", name, (False, f"{type(fault).__name__} {str(fault)[:300]}: not used", "")))
    pipe.send(("done", "", None))


class Checks:
    """confirmed grows while a thread watches the child: {"attention": name, "scan": name, "fla": folder, "compile": name}."""

    def __init__(self, context, names, config, shape, folders, say, hang="", budget=None):
        self.confirmed, self.done, self.now, self.process = {}, threading.Event(), "", None
        self.context, self.names, self.rest, self.say, self.budget = context, names, (config, shape, folders), say, {**BUDGET, **(budget or {})}
        self.hang, self.stopped, self.decided = hang, False, set()
        threading.Thread(target=self.watch, daemon=True).start()

    def open(self, kinds):
        return [n for n in self.names if n not in self.decided and n.split("_")[0] in kinds]

    def watch(self):
        try:
            while not self.stopped and any(n not in self.decided for n in self.names):
                self.one_child([n for n in self.names if n not in self.decided])
        except Exception as fault:  # noqa: BLE001: training goes on with the plain forms
            self.say(f"self-checks: {type(fault).__name__} {fault}: plain forms are used")
        self.done.set()

    def one_child(self, names):
        pipe, theirs = self.context.Pipe(duplex=False)
        self.process = self.context.Process(target=child, args=(theirs, names, *self.rest, dict(self.confirmed), self.hang), daemon=True)
        self.process.start()
        theirs.close()
        name, begun, until = names[0], time.time(), time.time() + IMPORTS
        self.now = "imports"
        while True:
            try:
                if not pipe.poll(max(0, until - time.time())):
                    self.say(f"self-check {name}: nothing after {time.time() - begun:.0f} s ({self.now}): stopped, not used")
                    self.decided.add(name)
                    break
                what, which, result = pipe.recv()
            except (EOFError, OSError):
                if not self.stopped:
                    self.process.join(5)
                    self.say(f"self-check {name}: its process ended with status {self.process.exitcode}: not used")
                self.decided.add(name)
                break
            if what == "done":
                self.decided.update(names)
                break
            if what == "begins":
                name, begun, until = which, time.time(), time.time() + self.budget[which]
                self.now = which
                self.say(f"self-check {name} begins, at most {self.budget[name]} s")
            else:
                good, line, used = result
                self.say(f"self-check {name} ends after {time.time() - begun:.1f} s: {line}")
                if good:
                    if name == "scan_fla":
                        self.confirmed["fla"] = used
                    self.confirmed[name.split("_")[0]] = name
                self.decided.update(n for n in self.names[:self.names.index(name) + 1])
                until = time.time() + 20
        self.kill()

    def kill(self):
        process = self.process
        if process is not None and process.pid and process.exitcode is None:
            for end in (os.killpg, os.kill):
                try:
                    end(process.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def stop(self):
        self.stopped = True
        self.kill()
